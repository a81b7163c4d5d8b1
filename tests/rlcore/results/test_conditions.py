"""Row filters of a recipe: SQL conditions that keep order and types, and read nothing else."""

import polars as pl
import pytest

from rlcore.results.conditions import filter_rows
from schemas.errors import UserError

FRAME = pl.DataFrame(
    {
        "uid": ["a", "b", "c", "d"],
        "length": [3, None, 1, 2],
        "prompt": [[{"role": "user", "content": text}] for text in ("x", "yy", "zzz", "")],
    }
)


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("length >= 2", ["a", "d"]),
        ("length IS NULL OR uid = 'c'", ["b", "c"]),
        ("len(prompt[1].content) > 1", ["b", "c"]),
        ("uid LIKE '%' -- all of them", ["a", "b", "c", "d"]),
        ("false", []),
    ],
)
def test_filters_keep_order_types_and_drop_null(condition: str, kept: list[str]) -> None:
    found = filter_rows(FRAME, condition)
    assert found["uid"].to_list() == kept
    assert found.schema == FRAME.schema


BAD_CONDITIONS = {
    "lenght > 1": r'column "lenght" not found.*; columns: uid, length, prompt',
    "length >": "is no SQL condition over the rows: Parser Error",
    "": "is no SQL condition over the rows",
    "count(*) > 1": "WHERE clause cannot contain aggregates",
    "prompt": "Unimplemented type for cast",
    "uid > 5": "Cannot compare values of type VARCHAR",
    "true); DROP VIEW frame_rows; SELECT (1": "is no SQL condition over the rows: Parser Error",
    "true) UNION ALL SELECT (7": "is no SQL condition over the rows",
    "uid IN (SELECT content FROM read_text('/etc/hostname'))": "Permission Error",
}


@pytest.mark.parametrize("condition", BAD_CONDITIONS)
def test_bad_conditions_name_the_columns(condition: str) -> None:
    with pytest.raises(UserError, match=BAD_CONDITIONS[condition]) as caught:
        filter_rows(FRAME, condition, where="data.sources.0.filter")
    assert str(caught.value).startswith(f"data.sources.0.filter = {condition!r}")
    assert str(caught.value).endswith("columns: uid, length, prompt")

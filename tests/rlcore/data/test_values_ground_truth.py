"""One rule for values that are not text, whatever file they come from."""

import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlcore.data.normalise import normalise
from rlcore.data.rows import BadRow, RawTable
from rlcore.data.sources import read_file
from rlcore.data.values import as_text

VALUES: list[tuple[Any, str | None]] = [
    ("72.0", "72.0"),
    ("", ""),
    (72, "72"),
    (72.0, "72"),
    (-0.0, "0"),
    (72.5, "72.5"),
    (1e20, "100000000000000000000"),
    (1e-7, "1e-07"),
    (math.nan, None),
    (None, None),
    (True, "true"),
    (Decimal("72.00"), "72"),
    (Decimal("72.50"), "72.5"),
    (Decimal("1E+3"), "1000"),
    (Decimal("0.000001"), "0.000001"),
    (Decimal("NaN"), None),
    (b"72", "72"),
    ("é".encode(), "é"),
    (date(2024, 5, 1), "2024-05-01"),
    (datetime(2024, 5, 1), "2024-05-01"),
    (datetime(2024, 5, 1, 8, 30, tzinfo=UTC), "2024-05-01T08:30:00+00:00"),
    (time(8, 30), "08:30:00"),
    (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (["a", 1, 2.0], '["a", 1, 2.0]'),
    ({"target": [Decimal("7"), date(2024, 5, 1)]}, '{"target": [7, "2024-05-01"]}'),
    ({"é": b"x"}, '{"é": "x"}'),
]


@pytest.mark.parametrize(("value", "text"), VALUES)
def test_a_value_is_the_text_that_a_person_would_write(value: Any, text: str | None) -> None:
    assert as_text(value) == text


@pytest.mark.parametrize("value", [math.inf, Decimal("-Infinity"), b"\xff\xfe", {1, 2}, 3j])
def test_what_has_no_text_is_a_reject(value: Any) -> None:
    """It became "b'...'" or "Infinity", which no answer equals."""
    with pytest.raises(BadRow, match="gold"):
        as_text(value, "gold")


@pytest.mark.parametrize("form", ["trl", "verl", "messages"])
def test_parquet_and_jsonl_give_the_same_truths(form: str, tmp_path: Path) -> None:
    """A column of integers with a gap is one of floats in pandas: 72.0 equals no answer."""
    truths = [72.0, 7.5, None]

    def row(truth: float | None) -> dict[str, Any]:
        if form == "verl":
            return {"prompt": "a?", "data_source": "x", "reward_model": {"ground_truth": truth}}
        if form == "messages":
            return {"messages": [{"role": "user", "content": "a?"}], "ground_truth": truth}
        return {"prompt": "a?", "ground_truth": truth}

    rows = [row(truth) for truth in truths]
    pl.DataFrame(rows, strict=False).write_parquet(tmp_path / "rows.parquet")
    text = "".join(json.dumps(row(math.nan if t is None else t)) + "\n" for t in truths)
    (tmp_path / "rows.jsonl").write_text(text)
    for name in ("rows.parquet", "rows.jsonl"):
        raw = read_file(str(tmp_path / name), setting="x")
        kept, rejects = normalise(RawTable(name, "train", raw))
        assert [one.ground_truth for one in kept][:2] == ["72", "7.5"]
        if form == "verl":
            assert [reject.reason for reject in rejects] == ["null_ground_truth"]
        else:
            assert kept[2].ground_truth is None


def test_float32_is_the_decimal_that_was_written(tmp_path: Path) -> None:
    """.1 became 0.10000000149011612, which no answer equals."""
    rows = {
        "ground_truth": pa.array([0.1, 72.0, 1e-8], pa.float32()),
        "reward_model": pa.array(
            [{"ground_truth": 0.3, "all": [[0.7]]}, None, {"ground_truth": None, "all": None}],
            pa.struct({"ground_truth": pa.float32(), "all": pa.list_(pa.large_list(pa.float32()))}),
        ),
    }
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    found = [dict(row) for row in read_file(str(tmp_path / "rows.parquet"), setting="x")]
    assert [row["ground_truth"] for row in found] == [0.1, 72.0, 1e-8]
    assert [row["reward_model"] for row in found] == [
        {"ground_truth": 0.3, "all": [[0.7]]},
        None,
        {"ground_truth": None, "all": None},
    ]


def test_what_parquet_pads_objects_with_is_left_out(tmp_path: Path) -> None:
    rows = [{"prompt": "a?", "ground_truth": {"words": ["a"]}}]
    rows.append({"prompt": "b?", "ground_truth": {"words": ["b"], "length": [1, 2]}})
    pl.DataFrame(rows).write_parquet(tmp_path / "rows.parquet")
    raw = read_file(str(tmp_path / "rows.parquet"), setting="x")
    kept, _ = normalise(RawTable("rows.parquet", "train", raw, padded=True))
    assert kept[0].ground_truth == '{"words": ["a"]}'
    assert as_text({"default": None}) == '{"default": null}'

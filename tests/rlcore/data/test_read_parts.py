"""Every row of every source is in one part that counts, whatever its file looks like."""

import json
from pathlib import Path

import polars as pl
import pytest

from rlcore.data.read import Part, parts_of
from schemas.data import ArithmeticSource, DataSection, FileSource
from schemas.errors import UserError


def parts(*sources: FileSource | ArithmeticSource) -> list[Part]:
    return list(parts_of(DataSection(sources=sources, deduplicate="off"), 0, None))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore.data.read.PART_ROWS", 4)


def test_parts_hold_all_rows_in_order(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "ground_truth": "1"} for n in range(10)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pl.DataFrame(rows[:5]).write_parquet(tmp_path / "b.parquet")
    made = ArithmeticSource(train=5, validation=2, test=2, test_steps=2, demonstrations=4)
    sources = [FileSource(path=str(tmp_path / name)) for name in ("a.jsonl", "b.parquet")]
    found = parts(*sources, made)
    assert [part.number for part in found] == list(range(len(found)))
    read = [(part.start, list(part.raw.rows)) for part in found if part.raw is not None]
    assert [row for _, some in read[:3] for row in some] == rows
    assert [row for _, some in read[3:] for row in some] == rows[:5]
    assert [start for start, _ in read] == [0, 4, 8, 0, 4]
    assert [len(part) for part in found[:5]] == [4, 4, 2, 4, 1]
    assert sum(len(part) for part in found[5:]) == 5 + 2 + 2 + 2 + 4 + 4


@pytest.mark.parametrize(
    ("late", "form"),
    [({"reward_model": {"style": "rule", "ground_truth": "2"}}, "verl"), ({"extra": 1}, "trl")],
)
def test_the_form_is_that_of_the_columns_of_all_rows(tmp_path: Path, late: dict, form: str) -> None:
    """A column that only late rows have says how the first ones are read too."""
    rows = [*({"prompt": f"{n}?", "completion": "x"} for n in range(9)), {"prompt": "9?", **late}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = parts(FileSource(path=str(tmp_path / "a.jsonl")))
    assert [part.form for part in found] == [form] * 3
    assert [part.start for part in found] == [0, 4, 8]


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"prompt": "2 + 3?", "ground_truth": "5"}, {}),
        ({"problem": "2 + 3?", "answer": "5"}, {"prompt": "problem", "ground_truth": "answer"}),
    ],
)
@pytest.mark.parametrize("null", [True, False])
def test_a_row_without_its_truth_has_not_the_worked_solution_for_it(
    tmp_path: Path, row: dict[str, str], columns: dict[str, str], null: bool
) -> None:
    asked, truth = row
    lacks = {asked: "1 + 1?", "solution": "It is 2.", **({truth: None} if null else {})}
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in [*[lacks] * 5, row]))
    source = FileSource.model_validate({"path": str(path), "columns": columns})
    rows = [row for part in parts(source) for row in part.normalised()[0]]
    assert [row.ground_truth for row in rows] == [None] * 5 + ["5"]
    assert {row.reward_style for row in rows[:5]} == {"model"}


def test_columns_that_make_no_form_may_come_late(tmp_path: Path) -> None:
    rows = [*({"extra": n} for n in range(5)), {"prompt": "?", "ground_truth": "1"}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = parts(FileSource(path=str(path)))
    assert [part.form for part in found] == ["trl", "trl"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:5]))
    with pytest.raises(UserError, match="which are of no accepted form"):
        parts(FileSource(path=str(path)))


def test_an_error_in_a_late_line_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "1?", "ground_truth": "1"}\n' * 9 + "{\n")
    with pytest.raises(UserError, match=r"a\.jsonl line 10 is not JSON"):
        parts(FileSource(path=str(tmp_path / "a.jsonl")))
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(UserError, match=r"a\.jsonl holds no rows"):
        parts(FileSource(path=str(tmp_path / "a.jsonl")))

"""What commands print fits the terminal, or is whole."""

import csv
import io
import json

import pytest
from rich.cells import cell_len

from flows.output import print_rows, table_lines, without_path

LONG = "word " * 200
ROWS = [
    {"name": "one", "count": 1, "share": 0.123456789, "text": LONG, "tokens": [1, 2]},
    {"name": "two", "count": 20, "share": None, "text": "日本語 " * 90, "tokens": []},
]
COLUMNS = list(ROWS[0])


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = table_lines(ROWS, COLUMNS, width)
    assert max(map(cell_len, lines)) <= width


def test_a_long_value_is_cut_with_an_ellipsis_and_a_short_one_is_whole() -> None:
    head, _, first, second = table_lines(ROWS, COLUMNS, 80)
    assert head.split() == COLUMNS
    assert first.split()[:3] == ["one", "1", "0.123457"]
    assert "…" in first
    assert "…" in second
    assert second.split()[:3] == ["two", "20", "null"]


def test_many_columns_are_a_record_at_a_time() -> None:
    """Sixteen columns side by side were three characters wide, over ninety lines."""
    wide = [{f"column_{n}": LONG for n in range(16)}] * 2
    lines = table_lines(wide, list(wide[0]), 100)
    assert len(lines) == 2 * 17
    assert lines[1].startswith("column_0   word word")
    assert lines[1].endswith("…")
    assert "── 2 ──" in lines[17]


def test_a_table_without_rows_shows_its_columns() -> None:
    assert table_lines([], ["one", "two"], 80)[0].split() == ["one", "two"]
    assert "column_9" in table_lines([], [f"column_{n}" for n in range(16)], 60)[0]


def test_what_a_model_wrote_cannot_move_the_cursor() -> None:
    lines = table_lines([{"text": "a\n\x1b[2Jb"}], ["text"], 80)
    assert lines[-1] == "a\\n\\x1b[2Jb"


@pytest.mark.parametrize("form", ["csv", "json"])
def test_csv_and_json_are_whole(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([*ROWS, ROWS[0] | {"share": float("nan")}], COLUMNS, form)
    text = capsys.readouterr().out
    if form == "json":
        rows = json.loads(text, parse_constant=pytest.fail)
        assert rows[:2] == ROWS
        assert rows[2]["share"] is None
    else:
        rows = list(csv.DictReader(io.StringIO(text)))
        assert rows[0]["text"] == LONG
        assert json.loads(rows[0]["tokens"]) == [1, 2]
        assert rows[1]["share"] == ""


def test_a_wide_table_of_numbers_stays_one_at_eighty_columns() -> None:
    """Each row was a record of eleven lines."""
    row = {"metric": "sampled_accuracy", "first": 0.6015625, "this": 0.5859375}
    row |= {"difference": -0.015625, "95 % low": -0.0625, "95 % high": 0.03125, "prompts": 256}
    row |= {"higher": 20, "lower": 24, "unmatched": 0}
    lines = table_lines([row, row], list(row), 80)
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    for shown in ("0.602", "-0.0156", "-0.0625", "0.0312", "256", "sampled"):
        assert shown in lines[2]


def test_a_fault_is_shown_and_not_the_path_before_it() -> None:
    place = "policy/0123abc"
    for root in ("/data/a b/runs/store", "s3://bucket/store", "runs/store"):
        said = f"{root}/{place}/a.bin was changed after it was written"
        assert without_path(said, place).endswith("a.bin was changed after it was written")
        assert place not in without_path(said, place)
    assert without_path(f"x/{place} is a symbolic link", place) == "is a symbolic link"
    assert without_path("is missing from the store", place) == "is missing from the store"

"""What can be known of a source without reading all of it."""

from pathlib import Path

import pytest

from rlcore.data.peek import FIRST_ROWS, peek
from schemas.data import FileSource, Gsm8kSource, HubSource
from schemas.errors import UserError
from tests.rlcore.data.row_files import VERL_ROWS, write

SOLVED = {"prompt": "What is 1 + 1?", "completion": "2"}
ASKED = {"prompt": "What is 1 + 1?"}


def test_rows_become_prompts_or_demonstrations_by_their_form(tmp_path: Path) -> None:
    forms = {
        "verl.parquet": (VERL_ROWS, (3000, 0)),
        "solved.jsonl": ([SOLVED] * 100, (0, 100)),
        "both.json": ([{**SOLVED, "ground_truth": "2"}] * 5, (5, 5)),
        "mixed.jsonl": ([SOLVED, ASKED] * 50, (None, None)),
    }
    for name, (rows, counts) in forms.items():
        (found,) = peek(FileSource(path=str(write(tmp_path / name, rows))), "data.sources[0]")
        assert (found.prompts, found.demonstrations) == counts, name
        assert len(found.rows) <= FIRST_ROWS


def test_a_limit_bounds_the_count(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", VERL_ROWS)
    (found,) = peek(FileSource(path=str(path), limit=70), "data.sources[0]")
    assert found.prompts == 70


def test_each_file_of_gsm8k_is_looked_at(tmp_path: Path) -> None:
    for split, count in (("train", 90), ("test", 10)):
        write(tmp_path / f"{split}.jsonl", [{"question": "1 + 1?", "answer": "#### 2"}] * count)
    found = peek(Gsm8kSource(path=str(tmp_path)), "data.sources[0]")
    assert [(p.split, p.prompts, p.demonstrations) for p in found] == [
        ("train", 90, 90),
        ("test", 10, 0),
    ]


def test_nothing_is_fetched_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GSM8K_DIR", raising=False)
    assert peek(Gsm8kSource(), "data.sources[0]") == []
    assert peek(HubSource(name="nobody/nothing"), "data.sources[0]") == []


def test_some_bad_rows_are_left_to_the_run(tmp_path: Path) -> None:
    """How many may be rejected is data.max_reject_fraction's to say, of all rows."""
    rows = [{**ASKED, "prompt": ""}] * 20 + [ASKED] * 10
    path = write(tmp_path / "rows.jsonl", rows)
    (found,) = peek(FileSource(path=str(path)), "data.sources[0]")
    assert (len(found.rows), found.prompts) == (10, 30)
    path = write(tmp_path / "bad.jsonl", rows[:20])
    with pytest.raises(UserError, match=r"^data\.sources\[4\]: '.*bad\.jsonl': none of its first"):
        peek(FileSource(path=str(path)), "data.sources[4]")

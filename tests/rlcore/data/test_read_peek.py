"""What can be known of a source without reading all of it."""

from pathlib import Path

import pytest

from rlcore.data.read import FIRST_ROWS, peek
from schemas.data import AimeSource, FileSource, Gsm8kSource, HubSource, MathSource
from schemas.errors import UserError
from tests.rlcore.data.row_files import MATH_ROWS, VERL_ROWS, write

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


def test_math_and_aime_are_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", MATH_ROWS)
    write(tmp_path / "test.jsonl", MATH_ROWS[:5])
    found = peek(MathSource(path=str(tmp_path)), "data.sources[0]")
    assert [(p.split, p.prompts, p.demonstrations) for p in found] == [
        ("train", 10, 10),
        ("test", 5, 0),
    ]
    found = peek(MathSource(path=str(tmp_path), levels=(5,)), "data.sources[0]")
    assert [(len(p.rows), p.prompts) for p in found] == [(2, None), (1, None)], "not all are chosen"
    aime = write(tmp_path / "aime.jsonl", [{"problem": "?", "answer": 7}] * 3)
    (one,) = peek(AimeSource(path=str(aime), limit=2), "data.sources[0]")
    assert (one.split, one.prompts, one.demonstrations) == ("test", 2, 0)


def test_nothing_is_fetched_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GSM8K_DIR", raising=False)
    assert peek(Gsm8kSource(), "data.sources[0]") == []
    assert peek(MathSource(), "data.sources[0]") == []
    assert peek(AimeSource(), "data.sources[0]") == []
    assert peek(HubSource(name="nobody/nothing"), "data.sources[0]") == []


def test_rows_that_cannot_be_used_are_kept_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{**ASKED, "prompt": ""}] * 20 + [ASKED] * 10)
    (found,) = peek(FileSource(path=str(path)), "data.sources[0]")
    assert (len(found.rows), len(found.rejects), found.prompts) == (10, 20, 30)
    (found,) = peek(FileSource(path=str(path)), "data.sources[0]", first=5)
    assert (len(found.rows), len(found.rejects), found.prompts) == (0, 5, 0)


def test_what_is_no_file_of_rows_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    write(tmp_path / "foreign.jsonl", [{"asked": "a", "output": "b"}])
    for name, said in (("empty", "holds no rows"), ("foreign", "has columns asked, output")):
        with pytest.raises(UserError, match=rf"^data\.sources\[4\]: '.*{name}\.jsonl' {said}"):
            peek(FileSource(path=str(tmp_path / f"{name}.jsonl")), "data.sources[4]")

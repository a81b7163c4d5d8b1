"""A part's rows go into its tables or its rejects, and what ends the run says at which stage."""

from pathlib import Path
from typing import Any

import pytest

from rlcore.data.prepare_part import ASKED, BESIDE, Prepared, Work, prepare_part
from rlcore.data.read import Part
from rlcore.data.rows import RawTable
from rlcore.models.tokenizer import EOS, train_tokenizer
from schemas.data import DataSection, FileSource

RAW: list[dict[str, Any]] = [
    {"prompt": "one?", "completion": "1", "ground_truth": "1"},
    {"prompt": 7},
    {"prompt": f"two {EOS}", "ground_truth": "2"},
    {"prompt": "three " * 60, "completion": "3", "ground_truth": "3"},
    {"prompt": "four?", "completion": "4 " * 60, "ground_truth": "4"},
    {"prompt": "five?", "ground_truth": "5"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["one two three 4 5 6"] * 10, 300)


def prepared(tokenizer: Any, folder: Path | None = None, **fields: Any) -> Prepared:
    given: dict[str, Any] = {"sources": (FileSource(path="x.jsonl"),), "max_prompt_tokens": 40}
    given |= {"deduplicate": "exact", "filters": ["ground_truth <> '5'"]} | fields
    work = Work(DataSection.model_validate(given), (), 50, folder)
    part = Part(3, "x.jsonl", RawTable("x.jsonl", "train", RAW), "trl", start=100)
    return prepare_part(tokenizer, work, part)


def test_rows_are_kept_or_rejected_by_stage(tokenizer: Any) -> None:
    done = prepared(tokenizer)
    assert list(zip(done.rejects["row"], done.rejects["reason"], strict=True)) == [
        (101, "wrong_type"),
        (102, "special_token"),
        (103, "over_length"),
        (104, "over_length_demonstration"),
        (105, "filter"),
    ]
    assert done.before == {"train": 5}
    assert done.prompts.keys["row"].to_list() == [100, 104]
    assert done.demonstrations.keys["row"].to_list() == [100], "a long prompt has no demonstration"
    assert done.prompts.columns.collect()[ASKED].to_list() == ["one?", "four?"]


def test_a_table_in_a_file_is_that_in_memory(tokenizer: Any, tmp_path: Path) -> None:
    held, filed = prepared(tokenizer), prepared(tokenizer, tmp_path)
    for one, other in ((held.prompts, filed.prompts), (held.demonstrations, filed.demonstrations)):
        assert one.columns.collect().equals(other.columns.collect())
        assert one.keys.equals(other.keys)
    assert len(list(tmp_path.glob("*.arrow"))) == 2


def test_rows_that_nothing_is_compared_with_are_kept_without_their_text(tokenizer: Any) -> None:
    done = prepared(tokenizer, deduplicate="off", decontaminate=False)
    assert not set(BESIDE) & set(done.prompts.columns.collect_schema())

"""Rows from all parts end in the right order, each with its own values, and once read per part."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.data.combine import Gathered
from rlcore.data.prepare_part import ASKED, Work, prepare_part
from rlcore.data.read import Part
from rlcore.data.rows import Row
from rlcore.models.tokenizer import train_tokenizer
from schemas.data import DataSection, FileSource


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["one two three"] * 10, 300)


def row(text: str, index: int, split: str = "train") -> Row:
    prompt = [{"role": "user", "content": text}]
    return Row("made", index, split, split, "sums", prompt, ground_truth="1")


def gathered(
    tokenizer: Any, parts: list[list[Row]], folder: Path | None = None, **fields: Any
) -> Gathered:
    given = {"sources": (FileSource(path="x.jsonl"),), "deduplicate": "exact"} | fields
    work = Work(DataSection.model_validate(given), (), None, folder)
    kept = []
    for number, rows in enumerate(parts):
        done = prepare_part(tokenizer, work, Part(number, f"source {number}", made=rows))
        kept.append((f"source {number}", done.prompts))
    rows = Gathered(kept)
    rows.keys = rows.keys.sort("split", maintain_order=True)
    return rows


PARTS = [
    [row("a", 0), row("b", 1, "test"), row("c", 2, "validation")],
    [],
    [row("d", 0, "validation"), row("a", 7), row("b", 8, "test")],
]


@pytest.mark.parametrize("in_files", [False, True])
def test_prompts_are_ordered_by_split_and_then_as_read(
    tokenizer: Any, tmp_path: Path, in_files: bool
) -> None:
    """Training on a held-out row, or evaluation of a training row, would not be noticed."""
    rows = gathered(tokenizer, PARTS, tmp_path if in_files else None)
    table = pl.concat(rows.frames())
    texts = [chat[0]["content"] for chat in table["prompt"]]
    assert list(zip(table["split"], texts, strict=True)) == [
        *(("validation", "c"), ("validation", "d"), ("train", "a"), ("train", "a")),
        *(("test", "b"), ("test", "b")),
    ]
    assert table["uid"].n_unique() == 6
    assert table["uid"][3] == f"{table['uid'][2]}-2"
    assert rows.keys.select("source", "row").rows() == [
        *(("source 0", 2), ("source 2", 0), ("source 0", 0), ("source 2", 7)),
        *(("source 0", 1), ("source 2", 8)),
    ]


def test_what_is_dropped_is_listed_with_its_row(tokenizer: Any, tmp_path: Path) -> None:
    rows = gathered(tokenizer, PARTS, tmp_path)
    frame = rows.rejects(rows.keys, {1: ("duplicate", "x"), 3: ("duplicate", "y")}, "said: ")
    assert frame.rows() == [
        ("source 2", 0, "duplicate", "said: x", '[{"role": "user", "content": "d"}]'),
        ("source 2", 7, "duplicate", "said: y", '[{"role": "user", "content": "a"}]'),
    ]
    assert rows.rejects(rows.keys, {}).is_empty()


def test_texts_come_in_the_order_asked_for(tokenizer: Any) -> None:
    rows = gathered(tokenizer, PARTS)
    assert rows.read(rows.keys[[5, 2, 1, 0]], ASKED)[ASKED].to_list() == ["b", "a", "d", "c"]
    assert rows.asked("test") == ["b", "b"]


def test_rows_are_left_out_by_source_and_number(tokenizer: Any) -> None:
    rows, source = gathered(tokenizer, PARTS), pl.Enum(["source 0", "source 1", "source 2"])
    lost = {"source": ["source 0", "source 2", "source 2"], "row": [0, 8, 1]}
    lost_keys = pl.DataFrame(lost, schema={"source": source, "row": pl.Int32})
    rows.leave_out(lost_keys, "source", "row")
    assert rows.asked("train") == ["a"]
    assert rows.asked("test") == ["b"]
    assert rows.asked("validation") == ["c", "d"]


def test_training_rows_kept_for_validation_change_their_split_alone(tokenizer: Any) -> None:
    many = [[row(f"question {n}", n) for n in range(40)]]
    rows = gathered(tokenizer, many)
    rows.hold_out("validation", pl.col("draw") <= pl.lit(2**63, pl.UInt64))
    table = pl.concat(rows.frames())
    held = table["split"] == "validation"
    assert 5 < held.sum() < 35
    assert (table["subset"] == table["split"]).all()
    assert [chat[0]["content"] for chat in table["prompt"]] == [f"question {n}" for n in range(40)]
    assert (rows.keys["split"] == "validation").to_list() == held.to_list()
    assert len(rows.draws()) == 40 - held.sum()

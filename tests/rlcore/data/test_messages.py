"""A part and what became of it are the same at the other end."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from rlcore.data.messages import (
    decode_answer,
    decode_part,
    decode_setup,
    encode_answer,
    encode_part,
    encode_setup,
    tokenizer_digest,
)
from rlcore.data.prepare_part import Part, Prepared, Work, prepare_part
from rlcore.data.rows import RawTable, Row
from rlcore.models.tokenizer import train_tokenizer
from schemas.data import DataSection, FileSource

ROWS: list[dict[str, Any]] = [
    {"prompt": "one?", "completion": "1", "ground_truth": "1", "deep": {"a": [1, 2.5, None, "é"]}},
    {"prompt": 7},
    {"prompt": [{"role": "user", "content": "two?"}], "ground_truth": 2},
]
TABLE = RawTable("a.parquet", "train", ROWS, columns={"completion": "completion"})
MADE = Row("made", 3, "test", "hard", "sums", [{"role": "user", "content": "?"}], tools=({"a": 1},))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["one two three"] * 10, 300)


def work(folder: Path | None = None, **fields: Any) -> Work:
    given = {"sources": (FileSource(path="x.jsonl"),), "deduplicate": "exact"} | fields
    return Work(DataSection.model_validate(given), [{"name": "f"}], 40, folder)


def sent(done: Prepared) -> Prepared:
    first, *blobs = encode_answer(done)
    return decode_answer(first, iter(blobs))


def test_a_part_arrives_as_it_was() -> None:
    for part in (Part(4, 1, "a", TABLE, "trl", 90), Part(5, 2, "made", made=[MADE])):
        message = encode_part(part)
        assert message is not None
        arrived = decode_part(message)
        assert (arrived.number, arrived.reading, arrived.source) == (
            part.number,
            part.reading,
            part.source,
        )
        assert (arrived.raw, arrived.form, arrived.start) == (part.raw, part.form, part.start)
        assert [(row.tools, row.prompt) for row in arrived.made] == [
            (list(row.tools), row.prompt) for row in part.made
        ]


@pytest.mark.parametrize(
    "value", [datetime.date(2024, 1, 1), b"x", [(1, 2)], {1: "a"}, float("nan")]
)
def test_values_that_json_changes_are_not_sent(value: Any) -> None:
    """A date that arrived as text would become a prompt, where it was refused before."""
    rows = [*ROWS, {"prompt": value}]
    assert encode_part(Part(0, 0, "a", RawTable("a.parquet", "train", rows), "trl")) is None


@pytest.mark.parametrize("deduplicate", ["exact", "off"])
@pytest.mark.parametrize("in_files", [False, True])
def test_an_answer_arrives_as_it_was(
    tokenizer: Any, tmp_path: Path, in_files: bool, deduplicate: str
) -> None:
    asked = work(tmp_path if in_files else None, deduplicate=deduplicate)
    done = prepare_part(tokenizer, asked, Part(4, 1, "a", TABLE, "trl", 90))
    arrived = sent(done)
    assert (arrived.number, arrived.reading, arrived.source) == (4, 1, "a")
    assert arrived.before == done.before == {"train": 2}
    assert list(arrived.rejects) == [("read", 0)]
    assert arrived.rejects["read", 0].equals(done.rejects["read", 0])
    for one, other in (
        (done.prompts, arrived.prompts),
        (done.demonstrations, arrived.demonstrations),
    ):
        assert one is not None
        assert other is not None
        for name in ("index", "split", "draw", "uid", "tokens"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert mine.dtype == theirs.dtype
            assert mine.tolist() == theirs.tolist()
        assert isinstance(other.columns.held, Path) == in_files
        assert one.columns().equals(other.columns())


def test_an_error_arrives_with_its_stage_and_nothing_after_it(tokenizer: Any) -> None:
    done = prepare_part(tokenizer, work(filters=("bad = 1",)), Part(0, 0, "a", TABLE, "trl"))
    arrived = sent(done)
    assert done.error is not None
    assert arrived.error is not None
    assert arrived.error[0] == done.error[0]
    assert str(arrived.error[1]) == str(done.error[1])
    assert arrived.prompts is None


def test_a_mistake_in_the_process_is_raised() -> None:
    with pytest.raises(RuntimeError, match="KeyError: 3"):
        decode_answer(b'{"failed": "KeyError: 3"}', iter(()))


def test_tokenizer_and_recipe_arrive_as_they_were(tokenizer: Any, tmp_path: Path) -> None:
    asked = work(tmp_path, filters=("split = 'train'",), validation_fraction=0.25)
    arrived, theirs = decode_setup(encode_setup(tokenizer, asked, tmp_path / "tokenizer"))
    assert theirs == asked
    assert tokenizer_digest(arrived) == tokenizer_digest(tokenizer)
    assert arrived.name_or_path == tokenizer.name_or_path
    arrived.chat_template = f"{arrived.chat_template}x"
    assert tokenizer_digest(arrived) != tokenizer_digest(tokenizer)

"""All rows of all sources are read once, and counted by their source."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rlcore.data.read import parts_of, read_rows, training_texts
from schemas.data import ArithmeticSource, DataSection, FileSource
from schemas.errors import UserError

SMALL = ArithmeticSource(train=5, validation=2, test=2, test_steps=2, demonstrations=4)


def file(path: Path, rows: list[dict], split: str = "train") -> FileSource:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return FileSource.model_validate({"path": str(path), "split": split})


@pytest.fixture
def data(tmp_path: Path) -> DataSection:
    good = {"prompt": "1?", "completion": "one", "ground_truth": "1"}
    train = file(tmp_path / "train.jsonl", [good, {"prompt": 7}])
    test = file(tmp_path / "test.jsonl", [good | {"prompt": "secret?"}], "test")
    return DataSection(sources=(SMALL, train, test), deduplicate="off", filters=("1 = 0",))


def test_rows_and_rejects_add_up_to_what_each_source_holds(data: DataSection) -> None:
    """Shares of rejected rows are judged by these totals."""
    for part in parts_of(data, seed=0):
        rows, rejects = part.normalised()
        assert len(part) == len(rows) + len(rejects)
        assert [reject.row for reject in rejects] == [1] * part.source.endswith("train.jsonl")
    names = [part.source.rpartition("/")[2] for part in parts_of(data, seed=0)]
    assert names == ["arithmetic", "train.jsonl", "test.jsonl"]


def test_a_tokenizer_is_trained_on_training_text_alone(data: DataSection) -> None:
    """And on what filters drop: the model from scratch must not hang on them."""
    texts = list(training_texts(data, seed=0))
    assert {"1?", "one"} <= set(texts)
    assert "secret?" not in texts


def test_a_tokenizer_waits_for_no_text_that_it_does_not_read() -> None:
    """Of 46,000 rows of the quickstart it reads a third; the others take seconds to make."""
    endless = SMALL.model_copy(update={"demonstrations": 10**9})
    texts = list(islice(training_texts(DataSection(sources=(endless,)), seed=0), 500))
    assert len(texts) == 500


def test_a_source_that_is_not_there_is_refused(tmp_path: Path) -> None:
    missing = DataSection(sources=(FileSource(path=str(tmp_path / "none.jsonl")),))
    with pytest.raises(UserError, match=r"none\.jsonl"):
        read_rows(missing, seed=0)


@pytest.mark.parametrize(
    ("columns", "row", "said"),
    [
        (
            {"prompt": "question", "ground_truth": "answer"},
            {"question": "2 + 3?", "answer": 5, "level": 1},
            ("2 + 3?", "5", [], '{"level": 1}'),
        ),
        (
            {"prompt": "problem", "completion": "solution", "ground_truth": "final"},
            {"problem": "2 + 3?", "solution": "It is 5", "final": "5", "prompt": "unused"},
            ("2 + 3?", "5", ["It is 5"], "{}"),
        ),
        (
            {"messages": "conversations", "data_source": "task"},
            {
                "conversations": [
                    {"role": "user", "content": "2 + 3?"},
                    {"role": "assistant", "content": "5"},
                ],
                "task": "sums",
            },
            ("2 + 3?", None, ["5"], "{}"),
        ),
        ({}, {"prompt": "2 + 3?", "solution": "$5$"}, ("2 + 3?", "$5$", [], "{}")),
    ],
)
def test_files_with_columns_of_other_names_are_read_by_naming_them(
    tmp_path: Path, columns: dict[str, str], row: dict[str, Any], said: tuple[Any, ...]
) -> None:
    """Without it, each dataset of the hub needs a script of its own."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    source = {"kind": "file", "path": str(path), "columns": columns}
    (read,) = read_rows(DataSection.model_validate({"sources": [source]}), seed=0)
    solution = [message["content"] for message in read.solution]
    assert (read.prompt_text, read.ground_truth, solution, read.extra_info) == said
    assert read.data_source == ("sums" if "task" in row else "rows.jsonl")


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "2 + 3?", "answer": "5"}) + "\n")
    source = {"kind": "file", "path": str(path), "columns": {"prompt": "questions"}}
    with pytest.raises(
        UserError,
        match=r"^data\.sources\.columns\.prompt = 'questions' and .*rows\.jsonl has no such column;"
        r" did you mean 'question'\?; its columns are question, answer$",
    ):
        read_rows(DataSection.model_validate({"sources": [source]}), seed=0)
    plain = DataSection.model_validate({"sources": [{"kind": "file", "path": str(path)}]})
    with pytest.raises(
        UserError, match=r"e\.g\. columns: \{prompt: question, ground_truth: answer\}$"
    ):
        read_rows(plain, seed=0)

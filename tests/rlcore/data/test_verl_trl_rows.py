"""Rows written for verl and TRL are read by their loader and by ours, equal to what was written."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.data.normalise import normalise
from rlcore.data.rows import RawTable, Row
from rlcore.data.sources import read_file
from rlcore.data.verl_trl_rows import RENAMED, write_rows
from rlcore.data.write import demonstrations_table, prompts_table
from rlcore.models.chat import Encoded
from schemas.errors import UserError

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is 2 + 3?"}
ASSISTANT = {"role": "assistant", "content": "#### 5"}
COMPARED = ("data_source", "prompt", "ability", "reward_style", "ground_truth")
NOT_OF_TRL = ("ability",)


def row(index: int, split: str = "train", **fields: Any) -> Row:
    prompt = [SYSTEM, {"role": "user", "content": f"What is 2 + {index}?"}]
    given: dict[str, Any] = {
        "ability": "math",
        "ground_truth": str(index + 2),
        "extra_info": json.dumps(
            {"index": index, "answer": "é", "steps": [1, index], "x": {"y": 1}}
        ),
        **fields,
    }
    return Row("f", index, split, split, "sums", prompt, **given)


def written(rows: list[Row], form: str, folder: Path, solved: list[Row] | None = None) -> Path:
    prompts = prompts_table([(one, [1, 2]) for one in rows])
    encoded = [(one, Encoded([1, 2], [False, True])) for one in solved or []]
    return write_rows(prompts, demonstrations_table(encoded), form, folder / form)


def read(path: Path) -> list[Row]:
    table = RawTable(str(path), "train", read_file(str(path), setting="path"))
    rows, rejects = normalise(table)
    assert not rejects
    return rows


@pytest.mark.parametrize("form", ["verl", "trl"])
def test_our_reader_gives_the_rows_that_were_written(form: str, tmp_path: Path) -> None:
    rows = [row(1), row(2), row(3, "test"), row(4, "validation")]
    out = written(rows, form, tmp_path)
    assert sorted(path.name for path in out.iterdir()) == [
        f"{split}.parquet" for split in ("test", "train", "validation")
    ]
    compared = [n for n in COMPARED if form == "verl" or n not in NOT_OF_TRL]
    for split in ("train", "test", "validation"):
        found = read(out / f"{split}.parquet")
        wanted = [one for one in rows if one.split == split]
        assert len(found) == len(wanted)
        for new, old in zip(found, wanted, strict=True):
            assert [getattr(new, n) for n in compared] == [getattr(old, n) for n in compared]
            assert json.loads(new.extra_info) == json.loads(old.extra_info)
            assert new.scored


@pytest.mark.slow
@pytest.mark.parametrize("form", ["verl", "trl"])
def test_the_loader_of_the_peers_reads_messages_and_truths(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both peers read by ``datasets``, and hand ``prompt`` to a chat template as it is."""
    from datasets import load_dataset

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    out = written([row(1), row(2)], form, tmp_path)
    file = str(out / "train.parquet")
    held = load_dataset("parquet", data_files=file, cache_dir=str(tmp_path / "c"))
    loaded: list[Any] = list(held["train"])
    assert loaded[0]["prompt"] == [SYSTEM, {"role": "user", "content": "What is 2 + 1?"}]
    assert loaded[1]["data_source"] == "sums"
    if form == "verl":
        assert loaded[1]["reward_model"] == {"style": "rule", "ground_truth": "4"}
        assert loaded[1]["extra_info"]["index"] == 2
    else:
        assert (loaded[1]["ground_truth"], loaded[1]["index"]) == ("4", 2)


def test_demonstrations_are_prompt_and_completion_of_trl(tmp_path: Path) -> None:
    solved = row(1, solution=[ASSISTANT])
    found = read(written([row(1)], "trl", tmp_path, [solved]) / "sft-train.parquet")
    assert [(one.prompt, one.solution) for one in found] == [(solved.prompt, [ASSISTANT])]
    assert found[0].data_source == "sums"
    assert not found[0].scored


@pytest.mark.parametrize(
    ("infos", "expected"),
    [
        ([{}, {}], [{}, {}]),
        ([{"a": 1}, {"b": "x"}], [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
        ([{"a": 1}, {"a": "x"}], [{"a": "1"}, {"a": '"x"'}]),
        ([{"a": 1}, {"a": 2.5}], [{"a": "1"}, {"a": "2.5"}]),
        ([{"a": {}}, {"a": {}}], [{"a": "{}"}, {"a": "{}"}]),
        ([{"a": {"b": 1}}, {"a": {"c": 1}}], [{"a": '{"b": 1}'}, {"a": '{"c": 1}'}]),
    ],
)
def test_what_parquet_cannot_hold_is_kept_as_text(
    infos: list[dict[str, Any]], expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    rows = [row(i, extra_info=json.dumps(info)) for i, info in enumerate(infos)]
    found = read(written(rows, "verl", tmp_path) / "train.parquet")
    assert [json.loads(one.extra_info) for one in found] == expected


def test_a_key_that_trl_would_take_for_its_own_is_renamed(tmp_path: Path) -> None:
    out = written([row(1, extra_info=json.dumps({"completion": "no"}))], "trl", tmp_path)
    frame = pl.read_parquet(out / "train.parquet")
    assert frame[f"{RENAMED}completion"].to_list() == ["no"]
    assert "completion" not in frame.columns


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    out = written([row(1)], "verl", tmp_path)
    before = (out / "train.parquet").read_bytes()
    with pytest.raises(UserError, match="is there already; remove it, or give another folder"):
        written([row(2)], "verl", tmp_path)
    assert (out / "train.parquet").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["verl"]

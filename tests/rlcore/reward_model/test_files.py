"""Preferences in files become rankings of whole answers, or are refused row by row."""

import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from rlcore.data.split import content_uid
from rlcore.reward_model.files import (
    SOLUTIONS_FILE,
    preference_digests,
    read_rankings,
    read_solutions,
)
from rlcore.reward_model.preferences import encode
from schemas.errors import UserError
from schemas.reward_model import FilePreferences, Gsm8kSolutions
from schemas.tables import Preferences
from tests.inputs import GSM8K, reads
from tests.rlcore.reward_model.responses import solutions, write


def test_model_solutions_become_ranked_answers_in_the_policys_form(tokenizer, tmp_path) -> None:
    """Cut off before 'A: ' is malformed; 'A: 21' is judged as the '#### 21' the policy writes."""
    path = write(tmp_path / SOLUTIONS_FILE, solutions(40))
    section = Gsm8kSolutions(path=str(path), instruction="Answer.")
    table = Preferences.validate(encode(read_solutions(section), tokenizer).table)
    first = table.filter(pl.col("uid") == table["uid"][0])
    assert Counter(first["level"]) == {"correct": 1, "wrong": 2, "malformed": 1}
    assert "20+1=21\n#### 21" in first["response"].to_list()
    ids, prompt_tokens = first["token_ids"].to_list()[0], first["prompt_tokens"][0]
    assert tokenizer.decode(ids[:prompt_tokens]) == "<|user|>What is 20 + 1? Answer.<|assistant|>"
    assert ids[-1] == tokenizer.eos_token_id
    splits = dict(table.group_by("uid").agg(pl.col("split").n_unique()).iter_rows())
    assert set(splits.values()) == {1}
    assert 2 <= table.filter(pl.col("split") == "validation")["uid"].n_unique() <= 15
    prompt = [{"role": "user", "content": "What is 20 + 1? Answer."}]
    assert table["uid"][0] == content_uid("openai/gsm8k", prompt, "21"), "as prepare_data names it"


def test_chosen_rejected_and_ranked_files(tokenizer, tmp_path) -> None:
    """TRL's explicit and implicit prompts, and ours; each row is ranked by itself."""
    asked, said = {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}
    rows = [
        {"prompt": "1+1?", "chosen": "2", "rejected": "3"},
        {"prompt": [asked], "chosen": [said], "rejected": [{**said, "content": "4"}]},
        {"chosen": [asked, said], "rejected": [asked, {**said, "content": "5"}]},
        {"prompt": "1+1?", "responses": ["2", "3", "11"], "ranks": [1, 2, 2]},
    ]
    path = write(tmp_path / "pairs.jsonl", rows)
    ranked = read_rankings(FilePreferences(path=str(path)))
    assert [(row.response, row.rank) for row in ranked] == [
        *(("2", 1), ("3", 2)),
        *(("2", 1), ("4", 2)),
        *(("2", 1), ("5", 2)),
        *(("2", 1), ("3", 2), ("11", 2)),
    ]
    assert all(row.prompt == [asked] for row in ranked)
    table = Preferences.validate(encode(ranked, tokenizer).table)
    assert table["uid"].n_unique() == 4
    assert table["level"].null_count() == table.height
    digest = preference_digests(FilePreferences(path=str(path)))
    write(path, rows[:1])
    assert preference_digests(FilePreferences(path=str(path))) != digest


B, C = {"role": "assistant", "content": "b"}, {"rejected": "c"}


def test_parts_and_chats_written_as_text_are_read(tmp_path: Path) -> None:
    """A list of parts was trained on as the text of a Python list, null as "None"."""
    parts = [{**B, "content": [{"type": "text", "text": "b"}]}]
    asked = [{"role": "developer", "content": "s"}, {"role": "user", "content": "a"}]
    chats = [
        {"prompt": asked, "chosen": parts, **C},
        {"prompt": str(asked), "chosen": json.dumps(parts), **C},
        {"chosen": [*asked, *parts], "rejected": [*asked, {**B, "content": "c"}]},
    ]
    rows = read_rankings(FilePreferences(path=str(write(tmp_path / "x.jsonl", chats))))
    read = [{"role": "system", "content": "s"}, asked[1]]
    assert [row.response for row in rows] == ["b", "c"] * 3
    assert all(row.prompt == read for row in rows)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "completion": "b"}, "the form must be TRL"),
        ({"prompt": "a", "responses": ["b", "c"], "ranks": [1]}, "one rank of 1"),
        ({"prompt": "a", "chosen": "b", "rejected": " "}, "one assistant turn that is not"),
        ({"chosen": "b", "rejected": "c"}, "a prompt ends with a user's turn"),
        ({"prompt": "a", "chosen": [{**B, "content": [{"type": "image"}]}], **C}, "type 'image'"),
        (
            {"prompt": "a", "chosen": [{**B, "content": None}], **C},
            "one assistant turn that is not",
        ),
        ({"prompt": "a", "chosen": [{**B, "thinking": "c"}], **C}, "has reasoning_content, and"),
        ({"prompt": "[{'role': 'user', 'content': 'a", "chosen": "b", **C}, "written as text, and"),
        ({"prompt": "a", "chosen": "b\ud83d", **C}, "half of a character"),
    ],
)
def test_other_rows_are_refused_by_number(row: dict, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row])
    with pytest.raises(UserError, match=message) as error:
        read_rankings(FilePreferences(path=str(path)))
    assert "row 0" in str(error.value)


def test_a_file_that_is_not_there_is_named_with_its_setting(monkeypatch) -> None:
    monkeypatch.delenv("GSM8K_DIR", raising=False)
    with pytest.raises(UserError, match=r"set reward_model\.preferences\.path"):
        preference_digests(Gsm8kSolutions())
    with pytest.raises(UserError, match=r"reward_model.preferences.path = '/no.jsonl' does not"):
        preference_digests(FilePreferences(path="/no.jsonl"))


@reads(GSM8K / SOLUTIONS_FILE)
def test_the_real_solutions_are_read_whole(monkeypatch) -> None:
    """1,319 questions of four solutions; 11 were cut off before an answer."""
    monkeypatch.setenv("GSM8K_DIR", str(GSM8K))
    rows = read_solutions(Gsm8kSolutions())
    assert len({row.uid for row in rows}) == 1319
    assert Counter(Counter(row.uid for row in rows).values()) == {4: 1319}
    assert Counter(row.level for row in rows) == {"correct": 2001, "wrong": 3264, "malformed": 11}
    held_out = {row.uid for row in rows if row.split == "validation"}
    assert 200 < len(held_out) < 330

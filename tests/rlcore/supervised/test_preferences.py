"""Preferences are fit for training: some differ, and none is too long."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.models.chat import encode_prompts
from rlcore.supervised.preference_files import SOLUTIONS_FILE, read_preferences
from rlcore.supervised.preferences import check_pairs, contaminated, encode, fit
from schemas.data import DataSection, FileSource
from schemas.errors import UserError
from schemas.reward_model import FilePreferences, Gsm8kSolutions
from tests.rlcore.supervised.responses import make_preferences, solutions, write


def test_no_two_responses_that_differ_is_said_before_training() -> None:
    with pytest.raises(UserError, match="no prompt with two of unequal rank"):
        check_pairs(make_preferences(8).filter(pl.col("rank") == 1))


def test_test_prompts_among_preferences_of_a_file_are_told(tokenizer: Any, tmp_path: Path) -> None:
    """The uid of such a row is of its responses, too, and no prompt's."""
    pairs = [{"prompt": f"{n}+1?", "chosen": f"{n + 1}", "rejected": "3"} for n in range(4, 9)]
    path = write(tmp_path / "pairs.jsonl", pairs)
    data = DataSection(sources=(FileSource(path="x.jsonl"),))
    table = encode(read_preferences(FilePreferences(path=str(path)), data).rows, tokenizer).table
    chats = [[{"role": "user", "content": pair["prompt"]}] for pair in pairs]
    prompts = pl.DataFrame(
        {"split": ["test", "test", *["train"] * 3], "prompt_ids": encode_prompts(tokenizer, chats)}
    )
    said = contaminated(table, prompts, "this policy")
    assert said is not None
    assert said.startswith("2 prompts of the preferences are test prompts")
    assert contaminated(table, prompts[2:], "this policy") is None


def test_responses_that_hold_a_special_token_are_left_out(tokenizer: Any, tmp_path: Path) -> None:
    """Its text would be read as the token, and end the turn."""
    pair = {"prompt": "1+1?", "chosen": f"2{tokenizer.eos_token}", "rejected": "3"}
    path = write(tmp_path / "pairs.jsonl", [pair])
    data = DataSection(sources=(FileSource(path="x.jsonl"),))
    rows = read_preferences(FilePreferences(path=str(path)), data).rows
    assert encode(rows, tokenizer).left_out == {"special_token": 1}
    with pytest.raises(UserError, match=r"1 of 2 responses .* such as the text holds"):
        encode(rows, tokenizer, max_reject_fraction=0.4)


def test_responses_that_the_template_refuses_count_as_rejected(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were left out without a word, up to all of them."""
    path = write(tmp_path / "pairs.jsonl", [{"prompt": "1+1?", "chosen": "2", "rejected": "3"}] * 3)
    data = DataSection(sources=(FileSource(path="x.jsonl"),))
    rows = read_preferences(FilePreferences(path=str(path)), data).rows
    refuses = (
        "{% if messages|length > 1 and '3' in messages[-1].content %}{{ raise_exception('no 3') }}"
    )
    monkeypatch.setattr(
        tokenizer, "chat_template", refuses + "{% endif %}" + tokenizer.chat_template
    )
    assert encode(rows, tokenizer, max_reject_fraction=0.5).left_out == {"template": 3}
    with pytest.raises(UserError, match=r"3 of 6 responses rejected, over .*= 0.4, .* no 3"):
        encode(rows, tokenizer, max_reject_fraction=0.4)


def test_long_responses_are_left_out_and_counted(tokenizer, tmp_path) -> None:
    path = write(tmp_path / SOLUTIONS_FILE, solutions(4))
    data = DataSection(sources=(FileSource(path="x.jsonl"),))
    ranked = encode(read_preferences(Gsm8kSolutions(path=str(path)), data).rows, tokenizer)
    longest = int(ranked.table["token_ids"].list.len().to_numpy().max())
    assert fit(ranked, longest).left_out == {}
    assert fit(ranked, 10).left_out == {"too_long": 16}

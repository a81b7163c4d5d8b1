"""Preferences are fit for training: some differ, and none is too long."""

import polars as pl
import pytest

from rlcore.supervised.preference_files import SOLUTIONS_FILE, read_preferences
from rlcore.supervised.preferences import check_pairs, encode, fit
from schemas.data import DataSection, FileSource
from schemas.errors import UserError
from schemas.reward_model import Gsm8kSolutions
from tests.rlcore.supervised.responses import make_preferences, solutions, write


def test_no_two_responses_that_differ_is_said_before_training() -> None:
    with pytest.raises(UserError, match="no prompt with two of unequal rank"):
        check_pairs(make_preferences(8).filter(pl.col("rank") == 1))


def test_long_responses_are_left_out_and_counted(tokenizer, tmp_path) -> None:
    path = write(tmp_path / SOLUTIONS_FILE, solutions(4))
    data = DataSection(sources=(FileSource(path="x.jsonl"),))
    ranked = encode(read_preferences(Gsm8kSolutions(path=str(path)), data).rows, tokenizer)
    longest = int(ranked.table["token_ids"].list.len().to_numpy().max())
    assert fit(ranked, longest).left_out == {}
    assert fit(ranked, 10).left_out == {"too_long": 16}

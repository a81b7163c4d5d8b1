"""The zero of a reward model is that of answers as the demonstrations give them."""

from pathlib import Path

import polars as pl
import pytest
import torch

from rlcore.models.weight_files import read_checkpoint, write_state
from rlcore.supervised.reward_model import shift_bias, zero_sequences
from schemas.errors import UserError
from tests.rlcore.supervised.responses import make_preferences


def test_without_demonstrations_the_best_responses_are_the_zero() -> None:
    preferences = make_preferences(6)
    zeros = zero_sequences(preferences.clear(), preferences, 1000, seed=0)
    best = pl.col("rank") == pl.col("rank").min().over("uid")
    assert len(zeros) == preferences.filter(best).height


def test_demonstrations_are_drawn_by_uid_whatever_their_order() -> None:
    """Another draw would be another zero, and the reward of every response with it."""
    demonstrations = (
        make_preferences(24).with_row_index("n").with_columns(uid=pl.format("d{}", "n"))
    )
    here, there = (
        zero_sequences(frame, make_preferences(1), 5, seed=3)
        for frame in (demonstrations, demonstrations.reverse())
    )
    assert [ids.tolist() for ids in here.token_ids] == [ids.tolist() for ids in there.token_ids]
    other = zero_sequences(demonstrations, make_preferences(1), 5, seed=4)
    assert [ids.tolist() for ids in here.token_ids] != [ids.tolist() for ids in other.token_ids]


def test_held_out_demonstrations_do_not_set_the_zero() -> None:
    held = make_preferences(3, split="validation")
    train = make_preferences(2)
    both = pl.concat([held, train])
    assert len(zero_sequences(both, train, 1000, seed=0)) == train.height


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shift_moves_the_bias_alone_and_keeps_its_dtype(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = {
        "score.weight": torch.ones(1, 2, dtype=dtype),
        "score.bias": torch.ones(1, dtype=dtype),
    }
    write_state(tmp_path / "model.safetensors", weights)
    shift_bias(tmp_path, -0.25)
    found = read_checkpoint(tmp_path)
    assert float(found["score.bias"]) == 0.75
    assert found["score.bias"].dtype == dtype
    assert torch.equal(found["score.weight"], weights["score.weight"])
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_a_policy_has_no_bias_to_shift(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_state(tmp_path / "model.safetensors", {"lm_head.weight": torch.ones(1)})
    with pytest.raises(UserError, match=r"holds no score\.bias"):
        shift_bias(tmp_path, 1.0)

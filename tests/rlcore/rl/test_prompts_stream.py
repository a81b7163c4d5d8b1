"""The prompt stream: a resume neither repeats nor skips data."""

import numpy as np
import polars as pl
import pytest

from rlcore.rl.prompts import PromptRows, PromptStream, take_prompts
from schemas.errors import UserError
from schemas.rl import RLSection
from tests.tiers import fast


def test_one_epoch_takes_every_prompt_once() -> None:
    taken = [take_prompts(10, cursor=c, count=5, seed=3) for c in (0, 5)]
    assert sorted(np.concatenate(taken)) == list(range(10))


def test_no_iteration_takes_a_prompt_twice_when_epochs_do_not_divide() -> None:
    """Two trajectories of one name would break the Rollouts contract and stop the run."""
    for iteration in range(40):
        taken = take_prompts(10, cursor=4 * iteration, count=4, seed=1)
        assert len(set(taken.tolist())) == 4


def test_epochs_and_seeds_order_differently() -> None:
    first = take_prompts(50, cursor=0, count=50, seed=0).tolist()
    assert take_prompts(50, cursor=50, count=50, seed=0).tolist() != first
    assert take_prompts(50, cursor=0, count=50, seed=1).tolist() != first


def test_too_few_prompts_is_said() -> None:
    with pytest.raises(UserError, match=r"rl\.rollout\.prompts = 64 exceeds the 10"):
        take_prompts(10, cursor=0, count=64, seed=0)


@pytest.mark.parametrize("before", fast([1, 3, 4, 7, 12], 4, 12))
@pytest.mark.parametrize("after", [1, 2, 5, 12, 20])
def test_a_fork_with_other_rounds_takes_no_prompt_twice(before: int, after: int) -> None:
    """From wherever the other run was; it skips less than one round."""
    rl = RLSection.model_validate({"rollout": {"prompts": after}, "update": {"mini_batches": 1}})
    rows = PromptRows.of_frame(pl.DataFrame({"uid": [str(row) for row in range(37)]}))
    stream = PromptStream(rows, rl, seed=1)
    for iterations in range(1, 40):
        cursor = stream.aligned(iterations * before)
        assert 0 <= cursor - iterations * before < after
        for step in range(40):
            taken = stream.round(cursor=cursor + step * after, drawn=0)
            assert taken["uid"].n_unique() == after
    assert stream.aligned(3 * after) == 3 * after

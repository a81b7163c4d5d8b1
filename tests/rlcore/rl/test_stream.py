"""The prompt stream: a resume neither repeats nor skips data."""

import numpy as np
import pytest

from rlcore.rl.stream import take_prompts
from schemas.errors import UserError


def test_one_epoch_takes_every_prompt_once() -> None:
    taken = [take_prompts(10, cursor=c, count=5, seed=3) for c in (0, 5)]
    assert sorted(np.concatenate(taken)) == list(range(10))


def test_position_means_the_same_prompt_however_it_is_reached() -> None:
    whole = take_prompts(7, cursor=0, count=7, seed=1)
    across = take_prompts(7, cursor=5, count=6, seed=1)
    assert across[:2].tolist() == whole[5:].tolist()
    assert across[2:].tolist() == take_prompts(7, cursor=7, count=4, seed=1).tolist()


def test_epochs_and_seeds_order_differently() -> None:
    first = take_prompts(50, cursor=0, count=50, seed=0).tolist()
    assert take_prompts(50, cursor=50, count=50, seed=0).tolist() != first
    assert take_prompts(50, cursor=0, count=50, seed=1).tolist() != first


def test_too_few_prompts_is_said() -> None:
    with pytest.raises(UserError, match=r"rl\.rollout\.prompts = 64 exceeds the 10"):
        take_prompts(10, cursor=0, count=64, seed=0)

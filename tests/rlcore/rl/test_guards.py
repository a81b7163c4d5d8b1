"""Silent failures end the run in a sentence that says what happened."""

import numpy as np
import polars as pl
import pytest

from rlcore.rl.guards import (
    MAX_DEAD_UPDATES,
    DeadUpdateError,
    RewardFailureError,
    SamplerDriftError,
    StaleWeightsError,
    check_fresh,
    check_rewards,
    check_sampler_gap,
    check_update,
)
from rlcore.rollout.types import WeightStamp


def _stamped(*stamps: tuple[int, str]) -> pl.DataFrame:
    return pl.DataFrame(
        {"weight_version": [s[0] for s in stamps], "weight_digest": [s[1] for s in stamps]}
    )


def test_rollouts_of_other_weights_stop_the_run() -> None:
    learner = WeightStamp(4, "aaaa")
    check_fresh(_stamped((4, "aaaa"), (4, "aaaa")), learner)
    with pytest.raises(StaleWeightsError, match=r"version 3 .* not synced"):
        check_fresh(_stamped((4, "aaaa"), (3, "aaaa")), learner)
    with pytest.raises(StaleWeightsError, match="digest bbbb"):
        check_fresh(_stamped((4, "bbbb")), learner)


def test_logprob_gap_is_measured_on_masked_tokens_only() -> None:
    sampler = [np.array([-1.0, -2.0, -9.0])]
    learner = [np.array([-1.0, -2.00005, -1.0])]
    mask = [np.array([True, True, False])]
    metrics = check_sampler_gap(sampler, learner, mask, bound=1e-4)
    assert metrics["training/rollout_logprobs_gap_max"] == pytest.approx(5e-5)
    with pytest.raises(SamplerDriftError, match=r"rl\.max_logprob_gap = 1e-05"):
        check_sampler_gap(sampler, learner, mask, bound=1e-5)


def test_nan_logprobs_do_not_pass_as_a_small_gap() -> None:
    with pytest.raises(SamplerDriftError):
        check_sampler_gap([np.array([np.nan])], [np.array([-1.0])], [np.array([True])], bound=1.0)


def test_dead_rewards_stop_the_run_with_their_commonest_reason() -> None:
    rewards = pl.DataFrame(
        {
            "score": [1.0, None, None],
            "outcome": ["ok", "error", "error"],
            "detail": ["", "boom", "boom"],
        }
    )
    check_rewards(rewards, max_error_fraction=0.7)
    with pytest.raises(RewardFailureError, match=r"2 of 3 rows .* on 2 rows, is error: boom"):
        check_rewards(rewards, max_error_fraction=0.5)


def test_updates_that_teach_nothing_are_said_and_then_stop_the_run() -> None:
    """Rewards that died look like training: same loss, same clock, no learning."""
    said: list[str] = []
    dead = {"actor/zero_gradient_steps": 2.0, "actor/skipped_steps": 0.0}
    streak = 0
    for _ in range(MAX_DEAD_UPDATES - 1):
        streak = check_update(dead, streak, log=said.append)
    assert len(said) == 1
    with pytest.raises(DeadUpdateError, match="20 updates in a row taught nothing"):
        check_update(dead, streak, log=said.append)
    assert check_update(dict.fromkeys(dead, 0.0), streak, log=said.append) == 0

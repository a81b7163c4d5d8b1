"""Silent failures end the run in a sentence that says what happened."""

import numpy as np
import polars as pl
import pytest

from rlcore.rl.guards import (
    RewardFailureError,
    SamplerDriftError,
    StaleWeightsError,
    check_fresh,
    check_rewards,
    check_sampler_gap,
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

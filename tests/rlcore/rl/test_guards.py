"""Silent failures end the run in a sentence that says what happened."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from flows.paths import RECIPES
from rlcore.models.weight_digest import WeightStamp
from rlcore.recipes.load import load_recipe
from rlcore.rewards.unscored_rows import RewardFailureError, check_unscored
from rlcore.rl.guards import (
    SamplerDriftError,
    StaleWeightsError,
    check_fresh,
    check_sampler_gap,
)
from schemas.rl import GapBound, RewardFunction, RewardSection


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


def _gap_bound(**overrides: Any) -> GapBound:
    """The bound that a recipe has, at the seam where the advantage phase reads it."""
    return load_recipe("quickstart", overrides, directory=RECIPES).sampler_gap_bound


def test_logprob_gap_is_measured_on_masked_tokens_only() -> None:
    sampler = [np.array([-1.0, -2.0, -9.0])]
    learner = [np.array([-1.0, -2.00005, -1.0])]
    mask = [np.array([True, True, False])]
    metrics = check_sampler_gap(sampler, learner, mask, bound=_gap_bound())
    assert metrics["training/rollout_logprobs_gap_max"] == pytest.approx(5e-5)
    tight = _gap_bound(**{"rl.max_logprob_gap": 1e-5})
    with pytest.raises(SamplerDriftError, match=r"\|gap\| = 5e-05 .* rl\.max_logprob_gap = 1e-05"):
        check_sampler_gap(sampler, learner, mask, bound=tight)


def test_a_good_bfloat16_batch_passes_whatever_its_largest_gap() -> None:
    """Figures of trl issue 6789: 3,916 tokens of Qwen2.5-0.5B, the largest gap 0.477 nats; between
    two chunk sizes of one learner it was 0.656. A batch of 1e5 tokens draws more of both."""
    gap = np.random.default_rng(0).exponential(0.012, size=3916)
    gap[7], gap[99] = 0.477, 0.656
    sampler, mask = [np.full(gap.shape, -1.0)], [np.ones(gap.shape, dtype=bool)]
    bound = _gap_bound(**{"model.dtype": "bfloat16"})
    metrics = check_sampler_gap(sampler, [-1.0 - gap], mask, bound=bound)
    assert metrics["training/rollout_logprobs_gap_max"] == pytest.approx(0.656)
    assert 1.01 < metrics["training/rollout_mult_prob_error"] < 1.02
    with pytest.raises(SamplerDriftError, match=r"3,916 tokens: max \|gap\| = 0\.656 nats, above"):
        check_sampler_gap(sampler, [-1.0 - gap], mask, bound=_gap_bound())


def test_wrong_weights_stop_a_bfloat16_run() -> None:
    gap = np.random.default_rng(0).exponential(0.06, size=4096)
    sampler, mask = [np.full(gap.shape, -1.0)], [np.ones(gap.shape, dtype=bool)]
    with pytest.raises(
        SamplerDriftError,
        match=r"exp\(mean \|gap\|\) = 1\.06.*, above rl\.max_mult_prob_error = 1\.05 \(max",
    ):
        check_sampler_gap(
            sampler, [-1.0 - gap], mask, bound=_gap_bound(**{"model.dtype": "bfloat16"})
        )
    wider = _gap_bound(**{"model.dtype": "bfloat16", "rl.max_mult_prob_error": 1.1})
    assert check_sampler_gap(sampler, [-1.0 - gap], mask, bound=wider)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_logprobs_do_not_pass_as_a_small_gap(dtype: str) -> None:
    bound = _gap_bound(**{"model.dtype": dtype})
    with pytest.raises(SamplerDriftError):
        check_sampler_gap([np.array([np.nan])], [np.array([-1.0])], [np.array([True])], bound=bound)


def test_dead_rewards_stop_the_run_with_their_commonest_reason() -> None:
    rewards = _scored(["ok", "error", "aborted", "error"])
    check_unscored(rewards, _bounds(errors=0.75, timeouts=0.0))
    with pytest.raises(RewardFailureError, match=r"3 of 4 rows .* on 2 of them, is error: boom"):
        check_unscored(rewards, _bounds(errors=0.7, timeouts=1.0))


def test_timeouts_have_a_bound_of_their_own() -> None:
    rewards = _scored(["ok", "timeout", "wrong", "no_answer"])
    check_unscored(rewards, _bounds(errors=0.0, timeouts=0.25))
    with pytest.raises(RewardFailureError, match=r"above reward\.max_timeout_fraction = 0\.2;"):
        check_unscored(rewards, _bounds(errors=1.0, timeouts=0.2))


def test_the_bounds_of_a_recipe_that_names_none() -> None:
    section = RewardSection(functions=(RewardFunction(name="gsm8k"),))
    assert (section.max_error_fraction, section.max_timeout_fraction) == (0.05, 0.2)


def _scored(outcomes: list[str]) -> list[tuple[str, str]]:
    return [(outcome, "boom") for outcome in outcomes]


def _bounds(*, errors: float, timeouts: float) -> RewardSection:
    return RewardSection(
        functions=(RewardFunction(name="gsm8k"),),
        max_error_fraction=errors,
        max_timeout_fraction=timeouts,
    )


def test_the_canary_is_judged_by_the_mean_in_every_dtype() -> None:
    """In float32 the worst of 31 tokens was 1.1e-4 nats off in one sync of thousands, every digest
    being right: as a maximum, 1e-4 ended a good run."""
    for dtype, limit in (("float32", 1e-4), ("bfloat16", 0.1)):
        recipe = load_recipe("quickstart", {"model.dtype": dtype}, directory=RECIPES)
        assert recipe.canary_bound == GapBound("rl.max_canary_gap", "mean", limit)

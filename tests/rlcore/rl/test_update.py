"""Mini-batches and learning rates of an update."""

import numpy as np
import polars as pl
import pytest

from flows.paths import RECIPES
from rlcore.learner.schedule import optimizer_lr
from rlcore.learner.spec import UpdateRequest, UpdateResult
from rlcore.models.packing import Sequences
from rlcore.recipes.load import load_recipe
from rlcore.rl.state import LoopState, validation_due
from rlcore.rl.update import (
    critic_request,
    critic_steps,
    mini_batch_rows,
    policy_objective,
    policy_request,
    policy_steps,
    update_metrics,
)
from schemas.algorithm import Rejection
from schemas.recipe import Recipe


def test_mini_batches_never_split_a_group_and_cover_every_row() -> None:
    """A split group would learn from half its baseline."""
    uids = np.array(["c", "a", "b", "a", "c", "b", "d", "d"])
    for seed in (None, 0, 1):
        parts = mini_batch_rows(uids, 2, shuffle_seed=seed)
        assert sorted(np.concatenate(parts)) == list(range(8))
        groups = [set(uids[part]) for part in parts]
        assert not groups[0] & groups[1]


def test_mini_batches_keep_the_order_of_prompts_unless_shuffled() -> None:
    uids = np.array(["c", "c", "a", "a", "b", "b", "d", "d"])
    assert [set(uids[p]) for p in mini_batch_rows(uids, 2, shuffle_seed=None)] == [
        {"c", "a"},
        {"b", "d"},
    ]


def test_learning_rate_ticks_per_optimizer_step() -> None:
    recipe = load_recipe("quickstart", directory=RECIPES)
    total = recipe.rl.iterations * recipe.rl.update.mini_batches
    rates = [optimizer_lr(recipe.rl.update.optimizer, step, total) for step in range(total)]
    assert 0 < rates[0] < rates[9] == max(rates) == recipe.rl.update.optimizer.lr
    last = 0.1 + 0.9 / (total + 1 - 10)  # the step after it would be at min_lr_ratio
    assert np.isclose(rates[-1], last * recipe.rl.update.optimizer.lr)


def test_best_checkpoint_is_the_later_of_equals_and_stop_needs_patience() -> None:
    stop = {"rl.validation.stop_at": 0.995, "rl.validation.patience": 2}
    rl = load_recipe("quickstart", stop, directory=RECIPES).rl
    state = LoopState().validated(0.5, rl)
    state = LoopState(iteration=10, accuracies=state.accuracies).validated(0.996, rl)
    assert not state.finished(rl)
    state = LoopState(iteration=20, accuracies=state.accuracies, streak=state.streak)
    state = state.validated(0.996, rl)
    assert state.finished(rl)
    assert state.best(2) == [20, 10]
    assert validation_due(state, rl)
    assert not validation_due(LoopState(iteration=21), rl)


def small_batch(finish: list[str], scored: list[bool]) -> pl.DataFrame:
    """One response of two tokens to each of ``finish`` prompts of two."""
    names = [f"p{index}" for index in range(len(finish))]
    numbers = [[0.0, 0.0, -0.5, -0.5]] * len(names)
    return pl.DataFrame(
        {
            "trajectory_id": names,
            "uid": names,
            "iteration": [1] * len(names),
            "token_ids": [[1, 2, 3, 4]] * len(names),
            "loss_mask": [[False, False, True, True]] * len(names),
            "sampler_logprobs": numbers,
            "finish_reason": finish,
            "advantages": numbers,
            "old_logprobs": numbers,
            "ref_logprobs": numbers,
            "values": numbers,
            "returns": [row if ok else None for row, ok in zip(numbers, scored, strict=True)],
            "positive": [True] * len(names),
        }
    )


def request_of(
    frame: pl.DataFrame, recipe: Recipe, *, ptx: Sequences | None = None
) -> UpdateRequest:
    """What the policy is asked for before it has learnt anything."""
    steps = policy_steps(frame, recipe)
    return policy_request(frame, steps, recipe=recipe, version=0, digest="d", ptx=ptx)


def critic_request_of(frame: pl.DataFrame, recipe: Recipe) -> UpdateRequest:
    """What the critic is asked for before it has learnt anything."""
    return critic_request(critic_steps(frame, recipe), recipe=recipe, version=0, digest="d")


def test_mini_batch_without_a_loss_token_makes_no_step() -> None:
    """The learner refuses one, between two steps, and every rerun would meet the same batch."""
    over = {
        "rl.rollout.prompts": 4,
        "rl.update.mini_batches": 2,
        "rl.update.epochs": 1,
        "rl.algorithm.mask_truncated": True,
    }
    recipe = load_recipe("quickstart-ppo", over, directory=RECIPES)
    batch = small_batch(["length", "length", "stop", "stop"], [True, True, False, False])
    request = request_of(batch, recipe)
    assert [len(terms[0].sequences) for terms in request.mini_batches] == [2]
    second_of_ten = 0.2 * recipe.rl.update.optimizer.lr
    assert np.isclose(request.lrs[0], second_of_ten), "the steps left keep their own rates"
    request = critic_request_of(batch, recipe)
    assert [len(terms[0].sequences) for terms in request.mini_batches] == [2]
    truncated = small_batch(["length"] * 4, [True] * 4)
    empty = request_of(truncated, recipe)
    assert empty.mini_batches == []
    counts = update_metrics("actor", empty, UpdateResult(version=1, metrics={}, steps=[]))
    assert counts == {
        "actor/optimizer_steps": 0.0,
        "actor/zero_gradient_steps": 0.0,
        "actor/skipped_steps": 0.0,
        "perf/memory_gib/actor": 0.0,
    }


def test_the_objective_corrects_as_the_recipe_says() -> None:
    veto = {"statistic": "veto", "low": 1e-4}
    masks = {"level": "token", "mode": "mask", "low": 0.5, "cap": 5.0, "reject": [veto]}
    over = {"rl.algorithm.importance_correction": masks}
    found = policy_objective(load_recipe("quickstart", over, directory=RECIPES))
    assert (found.importance_level, found.importance_mode) == ("token", "mask")
    assert (found.importance_low, found.importance_cap) == (0.5, 5.0)
    assert found.reject == (Rejection.model_validate(veto),)
    assert not found.bypass


@pytest.mark.parametrize("steps", [1, 2])
def test_with_the_sampler_as_old_no_step_is_on_policy(steps: int) -> None:
    """A ratio of exactly 1 would hide how far the sampler is, and clip nothing."""
    over = {"rl.update": {"old_logprobs": "rollout", "mini_batches": steps, "epochs": 1}}
    recipe = load_recipe("quickstart", over, directory=RECIPES)
    found = policy_objective(recipe)
    assert found.bypass
    assert not found.on_policy
    assert not recipe.scores_own_logprobs
    request = request_of(small_batch(["stop"] * 4, [True] * 4), recipe)
    assert {"rollout_logprobs", "advantages"} <= set(found.fields)
    assert set(found.fields) <= set(request.mini_batches[0][0].sequences.per_token)


def test_an_updates_metrics_hold_what_the_sums_of_its_steps_say() -> None:
    """A ratio of sums is of each step; the sums themselves mean nothing to a reader."""
    sums = {"units": 1.0, "weight": 1.0, "weight_square": 1.25, "above": 0.25, "below": 0.0}
    sums |= {"rows": 0.1, "kept_rows": 0.05, "kept_row_tokens": 0.25, "log_ppl_diff": 0.01}
    sums |= {"chi2_seq": 0.2, "chi2_seq_clamped": 0.0, "positive": 0.5, "positive_masked": 0.1}
    sums |= {"negative": 0.0, "negative_masked": 0.0}
    steps = [
        {"rollout_corr/kl": 0.1} | {f"rollout_corr_sums/{key}": v for key, v in step.items()}
        for step in (sums, {**sums, "weight_square": 5.0})
    ]
    recipe = load_recipe("quickstart", directory=RECIPES)
    request = request_of(small_batch(["stop"] * 4, [True] * 4), recipe)
    result = UpdateResult(version=1, metrics=steps[0], steps=steps)
    metrics = update_metrics("actor", request, result)
    assert not [name for name in metrics if name.startswith("rollout_corr_sums")]
    named = {n.removeprefix("rollout_corr/"): v for n, v in metrics.items() if "rollout_corr" in n}
    assert named == pytest.approx(
        {
            "kl": 0.1,
            "rollout_is_mean": 1.0,
            "rollout_is_std": (0.5 + 2.0) / 2,
            "rollout_is_eff_sample_size": (0.8 + 0.2) / 2,
            "rollout_is_ratio_fraction_high": 0.25,
            "rollout_is_ratio_fraction_low": 0.0,
            "rollout_rs_seq_masked_fraction": 0.5,
            "log_ppl_diff": 0.1,
            "chi2_seq": 2.0,
            "chi2_seq_clamped_fraction": 0.0,
            "kept_length_ratio": 0.5,
            "masked_fraction_positive": 0.2,
        }
    )


def test_ptx_draws_at_least_one_text() -> None:
    """A share that rounds to none left a step without a term to normalise."""
    over = {
        "rl.rollout.prompts": 4,
        "rl.update.mini_batches": 4,
        "rl.update.epochs": 1,
        "rl.ptx": {"coef": 1.0, "sequences_per_sample": 0.2},
    }
    recipe = load_recipe("quickstart-ppo", over, directory=RECIPES)
    text = Sequences([np.arange(3, dtype=np.int32)], [np.array([False, True, True])])
    request = request_of(small_batch(["stop"] * 4, [True] * 4), recipe, ptx=text)
    assert [len(terms[1].sequences) for terms in request.mini_batches] == [1] * 4


def test_warm_up_does_not_end_the_run_by_itself() -> None:
    """A policy that stands still validates alike; counting that would end VAPO early."""
    rl = load_recipe("quickstart-vapo", directory=RECIPES).rl
    state = LoopState(iteration=10).validated(1.0, rl)
    assert state.streak == 0
    assert LoopState(iteration=20).validated(1.0, rl).streak == 1

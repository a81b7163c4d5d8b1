"""Time and disk of a stage follow from what it does, and what is not known is said."""

from typing import Any

import pytest

from rlcore.models.shape import from_scratch_shape
from rlcore.plan.batches import evaluation_tokens
from rlcore.plan.data_size import data_size
from rlcore.plan.machine import check_machine
from rlcore.plan.stages import (
    Rates,
    RLSeconds,
    StageEstimate,
    cpu_rates,
    gpu_rates,
    rl_seconds,
    stage_estimates,
)
from schemas.model import FromScratch
from tests.rlcore.plan.small import ROOMY, recipe

SHAPE = from_scratch_shape(FromScratch())
STALE = {
    "rl__rollout__max_staleness": 1,
    "rl__algorithm__importance_correction__level": "token",
    "rl__checkpoint__every": 1,
}


def estimates(**overrides: Any) -> dict[str, StageEstimate]:
    fit = check_machine(recipe(**overrides), ROOMY)
    return {s.stage: s for s in stage_estimates(fit, SHAPE, cpu_rates(1))}


def test_stages_are_listed_as_they_run_and_one_that_is_off_is_not() -> None:
    assert list(estimates()) == [*("base_model", "prepare_data", "sft", "rl", "evaluate", "export")]
    assert "sft" not in estimates(sft__enabled=False)


def test_shorter_sequences_never_take_longer() -> None:
    assert all(s.half_s <= s.longest_s for s in estimates().values())


@pytest.mark.parametrize(
    "change",
    [
        {"rl__iterations": 200},
        {"rl__rollout__samples": 16},
        {"rl__update__epochs": 2},
        {"rl__validation__every": 1},
        {"rl__algorithm__kl__where": "loss"},
    ],
    ids=str,
)
def test_more_work_in_rl_is_planned_to_take_longer(change: dict[str, Any]) -> None:
    before, after = estimates(), estimates(**change)
    assert after["rl"].longest_s > before["rl"].longest_s
    assert after["sft"] == before["sft"]


def seconds(**overrides: Any) -> RLSeconds:
    fit = check_machine(recipe(**overrides), ROOMY)
    return rl_seconds(fit, SHAPE, cpu_rates(1))


@pytest.mark.parametrize("samples", [2, 8, 64])
def test_sampled_ahead_an_iteration_takes_the_longer_of_both_and_not_their_sum(
    samples: int,
) -> None:
    over = {"rl__rollout__samples": samples, "rl__validation__every": 5}
    turns, ahead = seconds(**over), seconds(**over, **STALE)
    assert (turns.drawing, turns.training) == (ahead.drawing, ahead.training)
    both = turns.drawing / 100, turns.training / 100
    assert turns.total == pytest.approx(100 * sum(both) + turns.validation)
    assert ahead.total == pytest.approx(sum(both) + 99 * max(both) + ahead.validation)
    saved = estimates(**over)["rl"].longest_s - estimates(**over, **STALE)["rl"].longest_s
    assert saved == pytest.approx(99 * min(both)), "validation waits for its turn"


def test_no_staleness_makes_an_iteration_shorter_than_the_longer_of_both() -> None:
    more = {"rl__rollout__max_staleness": 3}
    assert seconds(**STALE).total == seconds(**STALE | more).total
    assert seconds(**STALE, rl__iterations=1).total == seconds(rl__iterations=1).total


def test_a_reward_model_scores_while_others_are_sampled() -> None:
    functions = [{"name": "reward_model"}, {"name": "arithmetic", "weight": 0}]
    source = {"kind": "samples", "max_new_tokens": 40}
    section = {"preferences": source, "max_tokens": 128}
    scored = {"reward__functions": functions, "reward_model": section}
    plain, model = seconds(**STALE), seconds(**STALE, **scored)
    assert model.training == plain.training
    assert model.drawing > plain.drawing


def test_policies_that_sample_for_iterations_to_come_need_room() -> None:
    """In the host's memory until they are loaded, and on the disk until nothing resumes there."""
    fits = [
        check_machine(recipe(**STALE | {"rl__rollout__max_staleness": stale}), ROOMY)
        for stale in (0, 1, 4)
    ]
    shapes = [fit.shape for fit in fits if fit.shape is not None]
    parameters = shapes[0].parameters
    assert [fit.memory and fit.memory.published for fit in fits] == [
        policies * 4 * parameters for policies in (1, 2, 5)
    ]
    assert fits[2].host_bytes - fits[0].host_bytes == 4 * 4 * parameters
    kept = [fit.recipe.rl.checkpoints_kept for fit in fits]
    assert kept == [2, 2, 5], "keep_last is 2"
    assert fits[2].disk["rl"] - fits[0].disk["rl"] == 3 * 12 * parameters


def test_every_checkpoint_that_is_kept_needs_its_room() -> None:
    """The disk is full in the middle of a run otherwise."""
    few = estimates(rl__checkpoint__keep_last=1, rl__checkpoint__keep_best=1)["rl"]
    many = estimates(rl__checkpoint__keep_last=4, rl__checkpoint__keep_best=2)["rl"]
    assert many.disk_bytes - few.disk_bytes == 4 * 12 * SHAPE.parameters


def test_evaluation_is_capped_per_source_and_greedy_alone_with_one_sample() -> None:
    both = recipe(evaluate__max_prompts=100, evaluate__samples=8)
    data = data_size(both.data)
    assert data.test == (512, 256)
    assert evaluation_tokens(both, data) == (200 * 9 * 40, 200 * 9)
    one = recipe(evaluate__max_prompts=None, evaluate__samples=1, evaluate__pass_k=[1])
    assert evaluation_tokens(one, data) == (768 * 40, 768)


@pytest.mark.parametrize("rates", [cpu_rates(1), gpu_rates()], ids=["cpu", "gpu"])
def test_more_work_takes_longer_and_more_workers_share_it(rates: Rates) -> None:
    learner, sampler = rates.learner_s(10**9, 10**6, 3, 2), rates.sampler_s(10**9, 10**6, 2)
    assert rates.learner_s(10**9, 10**6, 3, 1) == pytest.approx(2 * learner)
    assert rates.sampler_s(10**9, 10**6, 1) == pytest.approx(2 * sampler)
    assert rates.learner_s(10**9, 10**6, 1, 2) == pytest.approx(learner / 3)
    assert rates.sampler_s(10**6, 10**6, 2) < sampler

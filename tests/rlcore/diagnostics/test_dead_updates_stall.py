"""Stalled learning is reported, on recorded runs and on scripted ones; slow learning is not.

``quickstart_runs.csv``: the metrics that the check reads, of the recipe quickstart at commit
fdeab5b on seeds 0, 7 and 11, rounded to 6 digits. ``critic/never_right_fraction`` is what
``RecentAnswers`` counts in the rollouts and rewards which those runs stored.
"""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.diagnostics.dead_updates import remedies
from rlcore.diagnostics.types import Stream
from rlcore.diagnostics.watch import Diagnostics, Finding, diagnose
from rlcore.rl.unsolved_prompts import NEVER_RIGHT
from tests.rlcore.diagnostics.streams import Metrics, recipe

RUNS = pl.read_csv(Path(__file__).parent / "quickstart_runs.csv")
Episodes = list[tuple[int, int | None]]  # (began, ended) of each
PPO_GROUPS = {"rl__rollout__samples": 8, "rl__rollout__prompts": 64}


def _recorded(run: str) -> list[Finding]:
    metrics = RUNS.filter(run=run).with_columns(stage=pl.lit("rl"))
    return diagnose(recipe(), metrics.select("stage", "step", "name", "value")).findings


@pytest.mark.parametrize("run", ["seed-0", "seed-7", "seed-11"])
def test_recorded_runs_that_learn_are_left_alone(run: str) -> None:
    """Seed 11 goes 40 iterations without a gain, at .988 and with every prompt right sometimes."""
    assert RUNS.filter(run=run, name="val/accuracy")["value"][-1] == 1.0
    assert _recorded(run) == []


def _reported(
    validations: dict[int, float],
    wrong: float = 0.08,
    *,
    name: str = "quickstart",
    check: str = "stalled",
    answers: int | None = None,
    **overrides: Any,
) -> Episodes:
    """Return the check's episodes in a run of those validations, of so many answers each."""
    diagnostics = Diagnostics(recipe(name, **overrides), log=lambda line: None)
    for iteration in range(max(validations) + 1):
        metrics: Metrics = {"critic/accuracy": 0.85}
        if iteration:
            metrics[NEVER_RIGHT] = wrong
        if iteration in validations:
            metrics["val/accuracy"] = validations[iteration]
            metrics |= {} if answers is None else {"val/judged_rows": float(answers)}
        diagnostics.observe(iteration, metrics)
    return [(f.began, f.ended) for f in diagnostics.findings if f.check == check]


def _every(step: int, *values: float) -> dict[int, float]:
    return {index * step: value for index, value in enumerate(values)}


# A plateau from iteration 10 on, with the wobble that 256 prompts have.
PLATEAU = _every(10, 0.58, 0.914, 0.906, 0.91, 0.898, 0.914, 0.91, 0.902, 0.91, 0.906, 0.908)


def test_best_at_iteration_10_is_said_at_30_and_not_at_the_end() -> None:
    assert _reported(PLATEAU) == [(30, None)]


@pytest.mark.parametrize(("wrong", "reported"), [(0.05, [(30, None)]), (0.049, [])])
def test_prompts_that_are_sometimes_right_can_still_be_learnt(
    wrong: float, reported: Episodes
) -> None:
    assert _reported(PLATEAU, wrong) == reported


def test_below_its_target_is_what_counts() -> None:
    at_target = {step: min(value, 0.9) for step, value in PLATEAU.items()}
    assert _reported(at_target, rl__validation__stop_at=0.9) == []
    assert _reported(at_target, rl__validation__stop_at=0.95) == [(30, None)]
    assert _reported(at_target, rl__validation__stop_at=None) == [(30, None)]
    assert _reported(_every(10, *[1.0] * 8), rl__validation__stop_at=None) == []


def test_a_target_for_a_reward_model_is_none_for_accuracy() -> None:
    """``stop_at`` then bounds the model's score, which may be anything."""
    assert _reported(PLATEAU, name="quickstart-rlhf", rl__validation__stop_at=0.5) == [(30, None)]


def test_slow_learning_adds_up_to_a_gain() -> None:
    """Each step is below the noise of one validation, three are above."""
    assert _reported(_every(5, *(0.5 + 0.011 * i for i in range(21)))) == []
    assert _reported(_every(10, *(0.5 + 0.022 * i for i in range(11)))) == []


def test_noise_is_that_of_the_answers_there_were() -> None:
    """25 of them, of a data set of 500, where the recipe asks for 256."""
    wobble = _every(10, 0.58, 0.8, 0.84, 0.84, 0.84)
    assert _reported(wobble) == [(40, None)]
    assert _reported(wobble, answers=25) == [(30, None)]
    falls = _every(10, 0.58, 0.8, 0.6)
    assert _reported(falls, check="validation_drop") == [(20, None)]
    assert _reported(falls, check="validation_drop", answers=25) == []


def test_it_is_over_once_there_is_a_gain() -> None:
    breaks_through = _every(10, 0.58, 0.91, 0.91, 0.91, 0.96, 0.97, 0.98)
    assert _reported(breaks_through) == [(30, 44)]


def test_trouble_returns_with_a_second_plateau() -> None:
    twice = _every(10, 0.58, 0.8, 0.8, 0.8, 0.9, 0.9, 0.9, 0.9)
    assert _reported(twice) == [(30, 44), (60, None)]


def test_frequent_validation_does_not_take_luck_for_a_gain() -> None:
    """Of ten validations one is two standard errors higher; their mean is not."""
    lucky = [0.9 + (0.03 if step % 10 == 7 else -0.003) for step in range(1, 61)]
    assert _reported(_every(1, 0.9, *lucky)) == [(20, None)]


def test_rare_validation_is_not_judged_before_it_happens() -> None:
    assert _reported(_every(50, 0.58, 0.59, 0.6)) == [(50, None)]


def test_warm_up_of_a_critic_is_no_stall() -> None:
    resting = _every(10, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6)
    assert _reported(resting, name="quickstart-vapo", rl__critic__warmup_iterations=30) == []
    assert _reported(resting, name="quickstart-vapo") == [(30, 54)]


def test_without_verdicts_nothing_is_said() -> None:
    diagnostics = Diagnostics(recipe(), log=lambda line: None)
    for iteration in range(60):
        diagnostics.observe(iteration, {"val/accuracy": 0.5})
    assert diagnostics.findings == []


REWARD, VERIFIER = "the reward is calibrated", "the verifier accepts"
SAMPLING, FILTERED = "set rl.algorithm.dynamic_sampling", "train/filtered_ratio"
CRITIC, WARM_UP = "rl.preset: vapo", "rl.critic.warmup_iterations"


@pytest.mark.parametrize(
    ("name", "overrides", "proposed"),
    [
        ("quickstart", {}, [REWARD, SAMPLING, CRITIC, VERIFIER]),
        ("quickstart-dapo", {}, [REWARD, FILTERED, CRITIC, VERIFIER]),
        ("quickstart-vapo", {}, [REWARD, SAMPLING, VERIFIER]),
        ("quickstart-ppo", {}, [REWARD, "rl.rollout.samples to 2", WARM_UP, VERIFIER]),
        ("quickstart-ppo", PPO_GROUPS, [REWARD, SAMPLING, WARM_UP, VERIFIER]),
    ],
)
def test_remedies_are_in_order_and_none_is_on_already(
    name: str, overrides: dict[str, Any], proposed: list[str]
) -> None:
    said = remedies(Stream(recipe(name, **overrides)))
    places = [said.find(words) for words in proposed]
    assert -1 not in places
    assert places == sorted(places)
    unwanted = {SAMPLING, FILTERED, CRITIC, WARM_UP, "rl.rollout.samples to 2"} - set(proposed)
    assert [words for words in unwanted if words in said] == []

"""Each check reports its problem once, and none reports a run that learns."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlcore.diagnostics.measures import MASKED, SAMPLE_SIZE
from rlcore.diagnostics.watch import CHECKS, Diagnostics
from rlcore.recipes.load import recipe_names
from tests.rlcore.diagnostics.streams import (
    QUICKSTARTS,
    RECIPES,
    Metrics,
    broken,
    fixed,
    healthy,
    recipe,
    watch,
)


@dataclass(frozen=True)
class Trouble:
    """One check's trouble: what changes from ``start`` on, in which recipe.

    ``company``: other checks that correctly report the same problem. ``reported``: the iteration at
    which it is reported; ``says``: what the sentence contains.
    """

    check: str
    change: Callable[[int, Metrics], Metrics]
    reported: int
    says: str
    start: int = 10
    recipe: str = "quickstart"
    overrides: dict[str, Any] = field(default_factory=dict)
    company: frozenset[str] = frozenset()


NOTHING_TO_LEARN = {"critic__score__mean": 0.0, "critic__accuracy": 0.0}

TROUBLES = [
    Trouble(
        "reward_dead",
        fixed(critic__score__max=0.0, critic__score__min=0.0, **NOTHING_TO_LEARN),
        reported=14,
        says="every response scores 0:",
        company=frozenset({"reward_hacking"}),
    ),
    Trouble(
        "everything_right",
        fixed(critic__accuracy=1.0, critic__score__mean=1.0),
        reported=14,
        says="for 5 iterations",
    ),
    Trouble(
        "reward_errors", fixed(reward__error_fraction=0.03), reported=10, says="3.0% of the rows"
    ),
    Trouble(
        "reward_timeouts",
        fixed(reward__timeout_fraction=0.15),
        reported=10,
        says="scoring of 15.0% of the rows",
    ),
    Trouble(
        "judge_failures",
        fixed(reward__judge_failed_fraction=0.5),
        reported=12,
        says="weight 0 fails on 50.0%",
    ),
    Trouble("no_answers", fixed(reward__no_answer_fraction=0.6), reported=14, says="60% of the"),
    Trouble(
        "reward_hacking",
        lambda iteration, metrics: {
            "critic/score/mean": 0.1 * iteration,
            "critic/accuracy": 0.7 - 0.01 * (iteration - 10),
        },
        reported=20,
        says="below its best while",
        recipe="quickstart-rlhf",
    ),
    Trouble(
        "constant_groups",
        fixed(critic__zero_std_group_fraction=0.95),
        reported=14,
        says="95% of the groups",
    ),
    Trouble(
        "filtered_ratio",
        fixed(train__filtered_ratio=0.62),
        reported=10,
        says="62% of the prompts, not below 50%",
        recipe="quickstart-dapo",
    ),
    Trouble(
        "dead_updates",
        lambda iteration, metrics: {
            "actor/zero_gradient_steps": float(iteration < 20),
            "actor/skipped_steps": float(iteration < 20),
        },
        reported=10,
        says="1 of its optimizer steps had a zero gradient and 1 were not finite",
        company=frozenset({"not_finite"}),
    ),
    Trouble(
        "dead_critic_updates",
        fixed(critic__zero_gradient_steps=2.0),
        reported=10,
        says="2 of its optimizer steps had a zero gradient",
        recipe="quickstart-ppo",
    ),
    Trouble("entropy_collapse", fixed(actor__entropy=0.01), reported=14, says="fallen to"),
    Trouble("entropy_explosion", fixed(actor__entropy=2.0), reported=13, says="2 nats"),
    Trouble("kl_spike", fixed(actor__ppo_kl=-0.3), reported=10, says="by -0.3 nats per token"),
    Trouble("reference_kl_spike", fixed(actor__ref_kl=0.5), reported=10, says="jumped to 0.5 nats"),
    Trouble(
        "everything_clipped",
        fixed(actor__pg_clipfrac_first_step=0.97),
        reported=11,
        says="97% of the",
    ),
    Trouble(
        "ratio_never_moves",
        fixed(actor__ratio_mean=1.0 + 1e-7, actor__ratio_max=1.0),
        reported=14,
        says="after 5 iterations",
    ),
    Trouble(
        "not_finite",
        fixed(actor__grad_norm=float("nan"), actor__skipped_steps=1.0),
        reported=10,
        says="1 optimizer steps had a gradient that is not finite",
    ),
    Trouble(
        "sampler_drift",
        fixed(training__rollout_logprobs_gap_max=7e-4),
        reported=10,
        says="differ by 0.0007 nats",
    ),
    Trouble(
        "sampler_drift_on_average",
        fixed(training__rollout_mult_prob_error=1.03, training__rollout_logprobs_gap_max=0.6),
        reported=10,
        says="is 1.030 (largest gap 0.6 nats)",
        overrides={"model.dtype": "bfloat16"},
    ),
    Trouble(
        "low_effective_sample_size",
        fixed(**{SAMPLE_SIZE: 0.22, MASKED: 0.0}),
        reported=12,
        says="a batch counts as 22% of its size",
        overrides={"rl__algorithm__importance_correction__level": "sequence"},
    ),
    Trouble(
        "mostly_masked",
        fixed(**{SAMPLE_SIZE: 0.2, MASKED: 0.8}),
        reported=12,
        says="80% of the tokens give no policy loss",
        overrides={
            "rl__algorithm__importance_correction__reject": [
                {"statistic": "geometric", "low": 0.999, "high": 1.001}
            ]
        },
    ),
    Trouble(
        "never_finite",
        lambda iteration, metrics: {"actor/skipped_steps": 2.0 * (iteration < 12)},
        reported=11,
        says="all 2 were not finite",
        company=frozenset({"not_finite", "dead_updates"}),
    ),
    Trouble(
        "critic_never_finite",
        lambda iteration, metrics: {"critic/skipped_steps": 2.0 * (iteration < 12)},
        reported=11,
        says="the critic learnt nothing: of its optimizer steps all 2 were not finite",
        recipe="quickstart-ppo",
        company=frozenset({"critic_not_finite", "dead_critic_updates"}),
    ),
    Trouble(
        "empty_answers",
        fixed(response__empty_ratio=1.0),
        reported=10,
        says="100% of the responses are empty: a stop token comes first",
    ),
    Trouble("truncation", fixed(response_length__clip_ratio=0.4), reported=12, says="40% of the"),
    Trouble(
        "answers_never_end",
        fixed(response_length__clip_ratio=0.95),
        reported=12,
        says="95% of the responses are cut off",
    ),
    Trouble("length_collapse", fixed(response_length__mean=2.0), reported=14, says="shrunk to"),
    Trouble(
        "length_explosion",
        lambda iteration, metrics: {
            "response_length/mean": 90.0,
            "critic/score/mean": 0.5,
        },
        reported=13,
        says="times as long as at first",
    ),
    Trouble(
        "aborted_responses", fixed(response__aborted_ratio=0.2), reported=10, says="20% of the"
    ),
    Trouble(
        "validation_drop",
        lambda iteration, metrics: {"val/accuracy": 0.3} if iteration % 10 == 0 else {},
        reported=20,
        says="validation accuracy is 0.300",
        start=20,
    ),
    Trouble(
        "stalled",
        lambda iteration, metrics: {
            "critic/never_right_fraction": 0.09,
            **({"val/accuracy": 0.9} if iteration % 10 == 0 else {}),
        },
        reported=40,
        says="validation accuracy (0.900) has not risen above noise for 20 iterations",
        start=20,
    ),
    Trouble(
        "critic_not_learning",
        fixed(critic__vf_explained_var=0.01),
        reported=24,
        says="risen by 0.000 only (now 0.01)",
        start=1,
        recipe="quickstart-ppo",
    ),
    Trouble(
        "value_loss_explosion",
        fixed(critic__vf_loss=9.0),
        reported=12,
        says="(now 9)",
        recipe="quickstart-vapo",
    ),
    Trouble(
        "critic_not_finite",
        fixed(critic__grad_norm=float("nan"), critic__skipped_steps=1.0),
        reported=10,
        says="1 critic steps had a gradient that is not finite",
        recipe="quickstart-ppo",
    ),
    Trouble(
        "critic_lr_below_actor_lr",
        fixed(),
        reported=0,
        says="is 0.33 of rl.update.optimizer.lr",
        recipe="quickstart-ppo",
        overrides={"rl__critic__optimizer__lr": 1e-4},
    ),
    Trouble(
        "vapo_without_warmup",
        fixed(),
        reported=0,
        says="rl.critic.warmup_iterations is 0",
        recipe="quickstart-vapo",
        overrides={"rl__critic__warmup_iterations": 0},
    ),
    Trouble(
        "small_lr_from_scratch",
        fixed(),
        reported=0,
        says="learns nothing at sft.optimizer.lr = 1e-05",
        overrides={"sft__optimizer__lr": 1e-5},
    ),
    Trouble(
        "dapo_in_part",
        fixed(),
        reported=0,
        says="without 1 of its four parts",
        recipe="math-dapo",
        overrides={"rl__algorithm__dynamic_sampling": None},
    ),
    Trouble(
        "kl_without_pull",
        fixed(),
        reported=0,
        says="adds 0.02 x k1 to the loss, whose gradient does not depend on the reference",
        overrides={"rl__algorithm__kl": {"where": "loss", "estimator": "k1", "coef": 0.02}},
    ),
    Trouble(
        "filter_sees_kl",
        fixed(),
        reported=0,
        says="no two answers have the same",
        recipe="quickstart-dapo",
        overrides={
            "rl__algorithm__kl": {"where": "reward"},
            "rl__algorithm__dynamic_sampling__metric": "final_score",
        },
    ),
    Trouble(
        "sequence_ratio_of_one",
        fixed(),
        reported=0,
        says="always exactly 1",
        recipe="quickstart-gspo",
        overrides={"rl__update__mini_batches": 1, "rl__update__epochs": 1},
    ),
]


@pytest.mark.parametrize(
    ("level", "first"), [("sequence", "set rl.algorithm.importance_correction.level: token"),
                         ("token", "lower rl.algorithm.importance_correction.cap")],
)  # fmt: skip
def test_the_remedy_for_unequal_weights_is_one_that_is_left(level: str, first: str) -> None:
    config = recipe(rl__algorithm__importance_correction__level=level)
    weights = fixed(**{SAMPLE_SIZE: 0.1, MASKED: 0.0})
    _, (found,) = watch(config, broken(weights, start=10, end=20))
    assert found.remedy.startswith(first)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"rl__algorithm__clip_high": 0.2}, "clip_high above clip_low"),
        ({"rl__algorithm__dynamic_sampling": None}, "dynamic_sampling"),
        ({"rl__algorithm__aggregation": "seq-mean-token-mean"}, "aggregation: token-mean"),
        ({"rl__algorithm__overlong": None}, "overlong or mask_truncated"),
    ],
)
def test_each_part_of_dapo_that_is_off_is_named(part: dict[str, Any], named: str) -> None:
    _, (found,) = watch(recipe("math-dapo", **part), healthy(length=1))
    assert found.check == "dapo_in_part"
    assert f"set rl.algorithm.{named}, or take" in found.remedy
    whole = recipe("math-dapo", rl__algorithm__overlong=None, rl__algorithm__mask_truncated=True)
    assert watch(whole, healthy(length=1))[1] == []


def test_a_pretrained_model_takes_fifty_iterations_of_value_warmup() -> None:
    def found(**overrides: Any) -> list[str]:
        warned = watch(recipe("aime-vapo", **overrides), healthy(length=1))[1]
        return [one.check for one in warned]

    assert found() == []
    assert found(rl__critic__warmup_iterations=49) == ["vapo_without_warmup"]


def test_every_check_has_its_trouble() -> None:
    assert {trouble.check for trouble in TROUBLES} == {check.name for check in CHECKS}
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.check)
def test_trouble_is_reported_once(trouble: Trouble) -> None:
    """A warning in every iteration is not read; a missing one costs a run."""
    config = recipe(trouble.recipe, **trouble.overrides)
    stream = broken(trouble.change, start=trouble.start, end=trouble.start + 19)
    if trouble.reported >= trouble.start + 18:  # judged over a longer stretch
        stream = broken(trouble.change, start=trouble.start, end=trouble.start + 40)
    said, findings = watch(config, stream)
    assert {found.check for found in findings} - trouble.company == {trouble.check}
    (found,) = [found for found in findings if found.check == trouble.check]
    begun = [line for line in said if f"({trouble.check}): " in line]
    assert len(begun) == 1
    assert trouble.says in found.message
    assert found.remedy in begun[0], "a warning without a remedy is a riddle"
    assert found.began == trouble.reported
    assert found.severity == "warning"


@pytest.mark.parametrize("suffix", QUICKSTARTS)
@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_learns_is_left_alone(suffix: str, seed: int) -> None:
    """Entropy from .3 to .05 and vanishing gradients are what success looks like."""
    said, findings = watch(recipe(f"quickstart{suffix}"), healthy(seed=seed))
    assert said == []
    assert findings == []


@pytest.mark.parametrize(
    "kl",
    [
        {"where": "reward", "estimator": "k1"},
        {"where": "loss", "estimator": "k1+"},
        {"where": "loss", "estimator": "abs"},
        {"where": "loss", "estimator": "k1", "coef": 0.0},
        {"where": "none", "estimator": "k1"},
    ],
)
def test_only_k1_in_the_loss_pulls_nowhere(kl: dict[str, Any]) -> None:
    said: list[str] = []
    Diagnostics(recipe(rl__algorithm__kl=kl), log=said.append)
    assert said == []


@pytest.mark.parametrize("name", recipe_names(RECIPES))
def test_shipped_recipes_follow_the_rules(name: str) -> None:
    said: list[str] = []
    Diagnostics(recipe(name), log=said.append)
    assert said == []


def test_a_model_reward_that_serves_the_truth_is_left_alone() -> None:
    stream = [
        {**metrics, "critic/score/mean": 3 * metrics.get("critic/accuracy", 0.5) - 1}
        for metrics in healthy()
    ]
    assert watch(recipe("quickstart-rlhf"), stream) == ([], [])


@pytest.mark.parametrize("tells_accuracy", [True, False])
def test_a_solved_task_does_not_end_in_an_error(tells_accuracy: bool) -> None:
    """All right means zero gradients and one score: the model is trained, not broken. A reward that
    is a plain number tells no accuracy."""
    solved = fixed(
        actor__zero_gradient_steps=2.0,
        critic__score__max=1.0,
        critic__score__min=1.0,
        critic__accuracy=1.0,
        critic__zero_std_group_fraction=1.0,
    )
    stream = broken(solved, start=50, end=101)
    if not tells_accuracy:
        for metrics in stream:
            metrics.pop("critic/accuracy", None)
    _, findings = watch(recipe(), stream)
    assert [found.check for found in findings] == ["everything_right"]

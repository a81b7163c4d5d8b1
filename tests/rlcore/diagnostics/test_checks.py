"""Each check speaks once about the trouble it is for, and none about a run that learns."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms.policy_loss import clipped_surrogate, importance_ratio
from rlcore.diagnostics.measures import CLIPPED_BY_NOISE
from rlcore.diagnostics.watch import CHECKS, DiagnosticError, Diagnostics, Finding
from rlcore.recipes import recipe_names
from schemas.algorithm import Algorithm
from schemas.recipe import Recipe
from tests.rlcore.diagnostics.streams import RECIPES, RECORDED, Metrics, broken, healthy, recipe

QUICKSTARTS = ("", "-ppo", "-dapo", "-rloo", "-gspo", "-gepo", "-vapo", "-remax")


@dataclass(frozen=True)
class Trouble:
    """One check's trouble: what changes from ``start`` on, in which recipe.

    ``company``: other checks that rightly speak about the same trouble. ``told``: the iteration at
    which it is said, and what the sentence holds.
    """

    check: str
    change: Callable[[int, Metrics], Metrics]
    told: int
    says: str
    start: int = 10
    recipe: str = "quickstart"
    overrides: dict[str, Any] = field(default_factory=dict)
    company: frozenset[str] = frozenset()


def _fixed(**values: float) -> Callable[[int, Metrics], Metrics]:
    """Set metrics; ``actor__lr`` stands for actor/lr."""
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return lambda iteration, metrics: named


NOTHING_TO_LEARN = {"critic__score__mean": 0.0, "critic__accuracy": 0.0}

TROUBLES = [
    Trouble(
        "reward_dead",
        _fixed(critic__score__max=0.0, critic__score__min=0.0, **NOTHING_TO_LEARN),
        told=14,
        says="every response scores 0:",
        company=frozenset({"reward_hacking"}),
    ),
    Trouble("everything_right", _fixed(critic__accuracy=1.0), told=14, says="for 5 iterations"),
    Trouble("reward_errors", _fixed(reward__error_fraction=0.03), told=10, says="3.0% of the rows"),
    Trouble(
        "reward_timeouts",
        _fixed(reward__timeout_fraction=0.15),
        told=10,
        says="scoring of 15.0% of the rows",
    ),
    Trouble(
        "judge_failures",
        _fixed(reward__judge_failed_fraction=0.5),
        told=12,
        says="weight 0 fails on 50.0%",
    ),
    Trouble("no_answers", _fixed(reward__no_answer_fraction=0.6), told=14, says="60% of the"),
    Trouble(
        "reward_hacking",
        lambda iteration, metrics: {
            "critic/score/mean": 0.1 * iteration,
            "critic/accuracy": 0.7 - 0.01 * (iteration - 10),
        },
        told=20,
        says="below its best while",
        recipe="quickstart-rlhf",
    ),
    Trouble(
        "constant_groups",
        _fixed(critic__zero_std_group_fraction=0.95),
        told=14,
        says="95% of the groups",
    ),
    Trouble(
        "filtered_ratio",
        _fixed(train__filtered_ratio=0.62),
        told=10,
        says="62% of the prompts, not below 50%",
        recipe="quickstart-dapo",
    ),
    Trouble(
        "generation_rounds",
        _fixed(train__num_gen_batches=9.0),
        told=10,
        says="took 9 generation rounds",
        recipe="quickstart-dapo",
    ),
    Trouble(
        "dead_updates",
        lambda iteration, metrics: {
            "actor/zero_gradient_steps": float(iteration < 20),
            "actor/skipped_steps": float(iteration < 20),
        },
        told=10,
        says="1 of its optimizer steps had a zero gradient and 1 were not finite",
        company=frozenset({"not_finite"}),
    ),
    Trouble(
        "dead_critic_updates",
        _fixed(critic__zero_gradient_steps=2.0),
        told=10,
        says="2 of its optimizer steps had a zero gradient",
        recipe="quickstart-ppo",
    ),
    Trouble("entropy_collapse", _fixed(actor__entropy=0.01), told=14, says="fallen to"),
    Trouble("entropy_explosion", _fixed(actor__entropy=2.0), told=13, says="2 nats"),
    Trouble("kl_spike", _fixed(actor__ppo_kl=-0.3), told=10, says="by -0.3 nats per token"),
    Trouble("reference_kl_spike", _fixed(actor__ref_kl=0.5), told=10, says="jumped to 0.5 nats"),
    Trouble("everything_clipped", _fixed(actor__pg_clipfrac=0.97), told=11, says="97% of the"),
    Trouble(
        "ratio_never_moves",
        _fixed(actor__ratio_mean=1.0 + 1e-7, actor__ratio_max=1.0),
        told=14,
        says="after 5 iterations",
    ),
    Trouble(
        "not_finite",
        _fixed(actor__grad_norm=float("nan"), actor__skipped_steps=1.0),
        told=10,
        says="1 optimizer steps had a gradient that is not finite",
    ),
    Trouble(
        "sampler_drift",
        _fixed(training__rollout_logprobs_gap_max=7e-4),
        told=10,
        says="differ by 0.0007 nats",
    ),
    Trouble(
        "sampler_drift_on_average",
        _fixed(training__rollout_mult_prob_error=1.03, training__rollout_logprobs_gap_max=0.6),
        told=10,
        says="is 1.030 (largest gap 0.6 nats)",
        overrides={"model.dtype": "bfloat16"},
    ),
    Trouble("truncation", _fixed(response_length__clip_ratio=0.4), told=12, says="40% of the"),
    Trouble("length_collapse", _fixed(response_length__mean=2.0), told=14, says="shrunk to"),
    Trouble(
        "length_explosion",
        lambda iteration, metrics: {
            "response_length/mean": 90.0,
            "critic/score/mean": 0.5,
        },
        told=13,
        says="times as long as at first",
    ),
    Trouble(
        "overlong_never_acts",
        _fixed(response_length__max=30.0),
        told=20,
        says="from 32 tokens on and the longest response had 30",
        start=1,
        recipe="quickstart-dapo",
    ),
    Trouble("aborted_responses", _fixed(response__aborted_ratio=0.2), told=10, says="20% of the"),
    Trouble(
        "validation_drop",
        lambda iteration, metrics: {"val/accuracy": 0.3} if iteration % 10 == 0 else {},
        told=20,
        says="validation accuracy is 0.300",
        start=20,
    ),
    Trouble(
        "stalled",
        lambda iteration, metrics: {
            "critic/never_right_fraction": 0.09,
            **({"val/accuracy": 0.9} if iteration % 10 == 0 else {}),
        },
        told=40,
        says="validation accuracy (0.900) has not risen above noise for 20 iterations",
        start=20,
    ),
    Trouble(
        "critic_not_learning",
        _fixed(critic__vf_explained_var=0.01),
        told=24,
        says="risen by 0.000 only (now 0.01)",
        start=1,
        recipe="quickstart-ppo",
    ),
    Trouble(
        "value_loss_explosion",
        _fixed(critic__vf_loss=9.0),
        told=12,
        says="(now 9)",
        recipe="quickstart-vapo",
    ),
    Trouble(
        "critic_not_finite",
        _fixed(critic__grad_norm=float("nan"), critic__skipped_steps=1.0),
        told=10,
        says="1 critic steps had a gradient that is not finite",
        recipe="quickstart-ppo",
    ),
    Trouble(
        "critic_lr_below_actor_lr",
        _fixed(),
        told=0,
        says="is 0.33 of rl.update.optimizer.lr",
        recipe="quickstart-ppo",
        overrides={"rl__critic__optimizer__lr": 1e-4},
    ),
    Trouble(
        "vapo_without_warmup",
        _fixed(),
        told=0,
        says="rl.critic.warmup_iterations is 0",
        recipe="quickstart-vapo",
        overrides={"rl__critic__warmup_iterations": 0},
    ),
    Trouble(
        "kl_without_pull",
        _fixed(),
        told=0,
        says="adds 0.02 x k1 to the loss, whose gradient does not depend on the reference",
        overrides={"rl__algorithm__kl": {"where": "loss", "estimator": "k1", "coef": 0.02}},
    ),
    Trouble(
        "filter_sees_kl",
        _fixed(),
        told=0,
        says="no two answers have the same",
        recipe="quickstart-dapo",
        overrides={
            "rl__algorithm__kl": {"where": "reward"},
            "rl__algorithm__dynamic_sampling__metric": "final_score",
        },
    ),
    Trouble(
        "sequence_ratio_of_one",
        _fixed(),
        told=0,
        says="always exactly 1",
        recipe="quickstart-gspo",
        overrides={"rl__update__mini_batches": 1},
    ),
]


def _watch(config: Recipe, stream: list[Metrics]) -> tuple[list[str], list[Finding]]:
    """Return the lines logged and the findings of a whole run."""
    said: list[str] = []
    diagnostics = Diagnostics(config, log=said.append)
    for iteration, metrics in enumerate(stream):
        diagnostics.observe(iteration, metrics)
    return said, diagnostics.findings


def test_every_check_has_its_trouble() -> None:
    assert {trouble.check for trouble in TROUBLES} == {check.name for check in CHECKS}
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.check)
def test_trouble_is_told_once(trouble: Trouble) -> None:
    """A warning in every iteration is not read; one that never comes costs a run."""
    config = recipe(trouble.recipe, **trouble.overrides)
    stream = broken(trouble.change, start=trouble.start, end=trouble.start + 19)
    if trouble.told >= trouble.start + 18:  # judged over a longer stretch
        stream = broken(trouble.change, start=trouble.start, end=trouble.start + 40)
    said, findings = _watch(config, stream)
    assert {found.check for found in findings} - trouble.company == {trouble.check}
    (found,) = [found for found in findings if found.check == trouble.check]
    begun = [line for line in said if f"({trouble.check}): " in line]
    assert len(begun) == 1
    assert trouble.says in found.message
    assert found.remedy in begun[0], "a warning without a remedy is a riddle"
    assert found.began == trouble.told
    assert found.severity == "warning"


@pytest.mark.parametrize("suffix", QUICKSTARTS)
@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_learns_is_left_alone(suffix: str, seed: int) -> None:
    """Entropy from .3 to .05 and vanishing gradients are what success looks like."""
    said, findings = _watch(recipe(f"quickstart{suffix}"), healthy(seed=seed))
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


NOISES = {
    "one offset": lambda rng, rows: np.full(rows, 6e-4),
    "either way": lambda rng, rows: rng.choice([-6e-4, 6e-4], rows),
    "normal": lambda rng, rows: rng.normal(0.0, 6e-4, rows),
    "much wider": lambda rng, rows: rng.normal(0.0, 0.05, rows),
}


def _clipped_by(noise: np.ndarray, advantages: np.ndarray, rule: Algorithm) -> float:
    """The clip fraction of the real loss where log-ratios are ``noise``, one token a row."""
    logprobs, rows = torch.from_numpy(noise), torch.arange(len(noise))
    ratio = importance_ratio(rule.ratio_level, logprobs, torch.zeros_like(logprobs), rows)
    loss = clipped_surrogate(
        ratio,
        torch.from_numpy(advantages),
        clip_low=rule.clip_low,
        clip_high=rule.clip_high,
        clip_dual=rule.clip_dual,
    )
    return float(loss.clipped.double().mean())


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("first", [True, False])
def test_noise_in_gspos_clip_range_is_told(noise: str, first: bool) -> None:
    """bfloat16's rounding of 6e-4 per token clips a quarter to a half of groups that differ, and
    no more however wide it is; told from the first step's clips, and without them, too."""
    config, rng = recipe("gsm8k-gspo"), np.random.default_rng(0)
    rows = 4096
    shares = []

    def noisy(iteration: int, metrics: Metrics) -> Metrics:
        advantages = rng.choice([-1.0, 1.0], rows)
        shares.append(_clipped_by(NOISES[noise](rng, rows), advantages, config.rl.algorithm))
        known = {"actor/pg_clipfrac_first_step": shares[-1]} if first else {}
        return {"actor/pg_clipfrac": shares[-1], **known}

    _, findings = _watch(config, broken(noisy, start=10, end=29))
    assert min(shares) > 0.25
    assert max(shares) < 0.55
    (found,) = findings
    assert (found.check, found.began) == ("everything_clipped", 11)
    assert "rl.update.old_logprobs: own" in found.remedy


def test_an_offset_along_the_advantage_clips_everything() -> None:
    rule = recipe("gsm8k-gspo").rl.algorithm
    assert _clipped_by(np.full(64, 6e-4), np.ones(64), rule) == 1.0


@pytest.mark.parametrize("suffix", sorted({*QUICKSTARTS} - {"-gspo", "-gepo"}))
def test_noise_is_far_below_the_clips_of_token_ratios(suffix: str) -> None:
    """Rounding of .05 nats, the widest that bfloat16 kernels show on average."""
    rule, rng = recipe(f"quickstart{suffix}").rl.algorithm, np.random.default_rng(0)
    noise, advantages = rng.normal(0.0, 0.05, 4096), rng.choice([-1.0, 1.0], 4096)
    assert _clipped_by(noise, advantages, rule) < CLIPPED_BY_NOISE / 100


@pytest.mark.parametrize("suffix", RECORDED)
def test_clips_of_real_runs_are_left_alone(suffix: str) -> None:
    """GSPO's own steps move most sequences by more than its clip range; GEPO clips on policy."""
    names = ("actor/pg_clipfrac", "actor/pg_clipfrac_first_step")
    recorded = [dict(zip(names, row, strict=True)) for row in RECORDED[suffix]]

    def real(iteration: int, metrics: Metrics) -> Metrics:
        return recorded[(iteration - 10) % len(recorded)]

    stream = broken(real, start=10, end=60)
    assert _watch(recipe(f"quickstart{suffix}"), stream) == ([], [])


def test_a_model_reward_that_serves_the_truth_is_left_alone() -> None:
    stream = [
        {**metrics, "critic/score/mean": 3 * metrics.get("critic/accuracy", 0.5) - 1}
        for metrics in healthy()
    ]
    assert _watch(recipe("quickstart-rlhf"), stream) == ([], [])


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("reward_dead", _fixed(critic__score__max=-1.0, critic__score__min=-1.0)),
        ("dead_updates", _fixed(actor__zero_gradient_steps=2.0)),
        ("dead_updates", _fixed(actor__optimizer_steps=0.0)),
        # a partial batch has fewer steps than the recipe plans
        ("dead_updates", _fixed(actor__optimizer_steps=1.0, actor__zero_gradient_steps=1.0)),
    ],
)
def test_nothing_to_learn_from_ends_the_run(
    check: str, change: Callable[[int, Metrics], Metrics]
) -> None:
    """Rewards that died look like training: same loss, same clock, no learning."""
    with pytest.raises(
        DiagnosticError, match=rf"\({check}, 20 iterations in a row up to it.* 29\)"
    ):
        _watch(recipe(), broken(change, start=10, end=60))
    _watch(recipe(), broken(change, start=10, end=29))


@pytest.mark.parametrize(
    ("overrides", "change", "cause", "remedy"),
    [
        (
            {"rl__algorithm__mask_truncated": True},
            _fixed(actor__optimizer_steps=0.0, response_length__clip_ratio=1.0),
            "no optimizer step, as no response holds a token to learn from: 100% were cut off",
            "raise rl.rollout.max_new_tokens (now 40)",
        ),
        (
            {"rl__algorithm__mask_truncated": True},
            _fixed(
                actor__optimizer_steps=0.0,
                response_length__clip_ratio=0.1,
                response__aborted_ratio=0.9,
            ),
            "10% were cut off .* 90% were aborted by the engine",
            "raise hardware.rollout.kv_cache_gib",
        ),
        (
            {"rl__algorithm__mask_truncated": True},
            _fixed(actor__zero_gradient_steps=2.0, response_length__clip_ratio=0.9),
            "2 of its optimizer steps had a zero gradient",
            "raise rl.rollout.max_new_tokens (now 40)",
        ),
        (
            {},
            _fixed(actor__skipped_steps=2.0, actor__grad_norm=float("nan")),
            "2 were not finite",
            "lower rl.update.optimizer.lr",
        ),
        ({}, _fixed(actor__zero_gradient_steps=2.0), "a zero gradient", "scores are equal within"),
    ],
)
def test_the_remedy_of_a_dead_update_goes_by_its_cause(
    overrides: dict[str, Any], change: Callable[[int, Metrics], Metrics], cause: str, remedy: str
) -> None:
    with pytest.raises(DiagnosticError, match=cause) as ended:
        _watch(recipe(**overrides), broken(change, start=10, end=60))
    assert f": {remedy}" in str(ended.value)
    assert "mask_truncated" not in str(ended.value), "it is on already, or would not help"


def test_the_critics_remedy_goes_by_its_cause() -> None:
    unscored = broken(_fixed(critic__optimizer_steps=0.0), start=10, end=60)
    with pytest.raises(DiagnosticError, match=r"no response has a score .*table rewards"):
        _watch(recipe("quickstart-ppo"), unscored)
    broken_off = _fixed(critic__skipped_steps=2.0, critic__grad_norm=float("nan"))
    with pytest.raises(DiagnosticError, match=r"2 were not finite .*lower rl.critic.optimizer.lr"):
        _watch(recipe("quickstart-ppo"), broken(broken_off, start=10, end=60))


@pytest.mark.parametrize(
    ("overrides", "cut_off", "remedy"),
    [
        ({}, 0.4, "raise rl.rollout.max_new_tokens, or set rl.algorithm.overlong (soft punishment)"
                  " or rl.algorithm.mask_truncated"),
        ({"rl__algorithm__mask_truncated": True}, 0.4, "raise rl.rollout.max_new_tokens, or set"
                                                       " rl.algorithm.overlong (soft punishment)"),
        ({"rl__algorithm__mask_truncated": True, "rl__algorithm__overlong": {}}, 0.4,
         "raise rl.rollout.max_new_tokens"),
        ({}, 1.0, "raise rl.rollout.max_new_tokens"),
    ],
)  # fmt: skip
def test_a_remedy_names_what_is_not_on_yet(
    overrides: dict[str, Any], cut_off: float, remedy: str
) -> None:
    """Where every response is cut off, masking would leave nothing and shaping tells none apart."""
    stream = broken(_fixed(response_length__clip_ratio=cut_off), start=10, end=29)
    _, (found,) = _watch(recipe(**overrides), stream)
    assert (found.check, found.remedy) == ("truncation", remedy)


def test_a_solved_task_does_not_end_in_an_error() -> None:
    """All right means zero gradients and one score: the model is made, not broken."""
    solved = _fixed(
        actor__zero_gradient_steps=2.0,
        critic__score__max=1.0,
        critic__score__min=1.0,
        critic__accuracy=1.0,
        critic__zero_std_group_fraction=1.0,
    )
    _, findings = _watch(recipe(), broken(solved, start=50, end=101))
    assert [found.check for found in findings] == ["everything_right"]

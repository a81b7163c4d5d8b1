"""Checks of whether an update changed anything, and of learning that has stalled although there
are prompts left to learn."""

from bisect import bisect_right
from collections.abc import Callable

from rlcore.diagnostics.measures import (
    ABORTED,
    BROKEN,
    HOPELESS,
    LONGER_RESPONSES,
    MORE_CACHE,
    TRUNCATED,
    VALIDATION,
    all_right,
    finite_critic_steps,
    finite_steps,
    has_critic,
    validated,
)
from rlcore.diagnostics.types import Check, Stream
from rlcore.rl.unsolved_prompts import NEVER_RIGHT, RECENT
from schemas.names import is_model


def _share(*kinds: str, of_none: float | None) -> Callable[[Stream], float | None]:
    """Share of the optimizer steps of a learner that were of ``kinds``, such as
    "actor/skipped_steps"; ``of_none``: where it made none."""
    all_steps = f"{kinds[0].partition('/')[0]}/optimizer_steps"

    def measure(stream: Stream) -> float | None:
        steps = stream.now[all_steps]
        return sum(stream.now[kind] for kind in kinds) / steps if steps else of_none

    return measure


def _cut_off(stream: Stream) -> float:
    """Share of the responses that were cut off and are left out of the loss for it."""
    return stream.now.get(TRUNCATED, 0.0) if stream.recipe.rl.algorithm.mask_truncated else 0.0


def _actor_says(stream: Stream) -> str:
    if stream.now["actor/optimizer_steps"]:
        return (
            "an update changed nothing: {now[actor/zero_gradient_steps]:.0f} of its optimizer steps"
            " had a zero gradient and {now[actor/skipped_steps]:.0f} were not finite"
        )
    return (
        "an update made no optimizer step, as no response holds a token to learn from:"
        f" {_cut_off(stream):.0%} were cut off at rl.rollout.max_new_tokens and are left out of the"
        f" loss, {stream.now.get(ABORTED, 0.0):.0%} were aborted by the engine"
    )


def _actor_remedy(stream: Stream) -> str:
    cut_off, no_step = _cut_off(stream), not stream.now["actor/optimizer_steps"]
    if no_step and stream.now.get(ABORTED, 0.0) > cut_off:
        return MORE_CACHE
    if no_step or cut_off > 0.5:
        limit = stream.recipe.rl.rollout.max_new_tokens
        return f"{LONGER_RESPONSES} (now {limit}), or train on demonstrations that end within it"
    if not stream.now["actor/zero_gradient_steps"]:
        return finite_steps(stream)
    return (
        "scores are equal within every group, or the loss is broken: look at critic/score/mean and"
        " at the responses, then correct the reward or the data"
    )


def _critic_says(stream: Stream) -> str:
    if stream.now["critic/optimizer_steps"]:
        return (
            "the critic learnt nothing: {now[critic/zero_gradient_steps]:.0f} of its optimizer"
            " steps had a zero gradient and {now[critic/skipped_steps]:.0f} were not finite"
        )
    return "the critic made no optimizer step: no response has a score to learn from"


def _critic_remedy(stream: Stream) -> str:
    if not stream.now["critic/optimizer_steps"]:
        return "see outcome and detail in the table rewards, then correct the reward function"
    if not stream.now["critic/zero_gradient_steps"]:
        return finite_critic_steps(stream)
    return (
        "values equal their targets everywhere, or the loss is broken: compare critic/values/mean"
        " with critic/returns/mean, then correct the reward or the data"
    )


DEAD_UPDATE_CHECKS = (
    Check(
        name="never_finite",
        reads=("actor/optimizer_steps", "actor/skipped_steps"),
        measure=_share("actor/skipped_steps", of_none=None),
        threshold=1.0,
        patience=2,
        fatal_after=BROKEN,
        says=(
            "an update changed nothing: of its optimizer steps all"
            " {now[actor/skipped_steps]:.0f} were not finite"
        ),
        remedy=finite_steps,
    ),
    Check(
        name="critic_never_finite",
        reads=("critic/optimizer_steps", "critic/skipped_steps"),
        measure=_share("critic/skipped_steps", of_none=None),
        threshold=1.0,
        patience=2,
        fatal_after=BROKEN,
        applies=has_critic,
        says=(
            "the critic learnt nothing: of its optimizer steps all"
            " {now[critic/skipped_steps]:.0f} were not finite"
        ),
        remedy=finite_critic_steps,
    ),
    Check(
        name="dead_updates",
        reads=("actor/optimizer_steps", "actor/zero_gradient_steps", "actor/skipped_steps"),
        measure=_share("actor/zero_gradient_steps", "actor/skipped_steps", of_none=1.0),
        threshold=1.0,
        fatal_after=HOPELESS,
        quiet=all_right,
        says=_actor_says,
        remedy=_actor_remedy,
    ),
    Check(
        name="dead_critic_updates",
        reads=("critic/optimizer_steps", "critic/zero_gradient_steps", "critic/skipped_steps"),
        measure=_share("critic/zero_gradient_steps", "critic/skipped_steps", of_none=1.0),
        threshold=1.0,
        fatal_after=HOPELESS,
        applies=has_critic,
        quiet=all_right,
        says=_critic_says,
        remedy=_critic_remedy,
    ),
)


POOLED = 10  # iterations whose validations are averaged into one figure
WRONG_SHARE = 0.05


def iterations_without_gain(stream: Stream) -> float | None:
    """Return how long before the last validation its figure last rose above noise, in iterations.

    As in early stopping, a gain is a figure that exceeds that of the last gain by more than the
    noise: small gains add up, and fluctuation around a plateau is no gain. The figure at a
    validation is the mean over the ``POOLED`` iterations up to it, so that with frequent validation
    the luckiest one does not count as a gain. The noise is one standard error of a proportion over
    what was validated: every validation uses the same prompts, so two of them differ by less
    than two samples of prompts would. A critic's warm-up does not count, since the policy is not
    trained in it.
    """
    steps, values = stream.steps(VALIDATION), stream.history(VALIDATION)
    if not steps:
        return None
    rl, answers = stream.recipe.rl, validated(stream)
    gained, best = steps[0], values[0]
    for end, step in enumerate(steps, start=1):
        pooled = values[bisect_right(steps, step - POOLED) : end]
        figure = sum(pooled) / len(pooled)
        if figure - best > _standard_error(best, answers):
            gained, best = step, figure
    return steps[-1] - max(gained, rl.critic.warmup_iterations if rl.critic else 0)


def _standard_error(accuracy: float, prompts: int) -> float:
    """Of an accuracy over ``prompts``; with one right and one wrong answer added (Laplace), since
    figures of 0 and 1 are uncertain as well."""
    p = (accuracy * prompts + 1) / (prompts + 2)
    return (p * (1 - p) / prompts) ** 0.5


def _little_to_learn(stream: Stream) -> bool:
    """Return whether few prompts are wrong in every sample, or a validation of the last ``RECENT``
    iterations was at the target: 1 without ``stop_at``, or where that bounds another figure."""
    recipe = stream.recipe
    rule_rewards = any(f.weight and not is_model(f.name) for f in recipe.reward.functions)
    target = recipe.rl.validation.stop_at if rule_rewards else None
    steps, values = stream.steps(VALIDATION), stream.history(VALIDATION)
    best = max(values[bisect_right(steps, steps[-1] - RECENT) :])
    return stream.now[NEVER_RIGHT] < WRONG_SHARE or best >= (1.0 if target is None else target)


def remedies(stream: Stream) -> str:
    """Return what to check, in the order of StateSet's guide for low accuracy: reward, dynamic
    sampling, critic with warm-up, verifier. What is already on is not proposed."""
    rl = stream.recipe.rl
    if rl.algorithm.dynamic_sampling is not None:
        sampling = "see in train/filtered_ratio whether dynamic sampling filters too many prompts"
    elif rl.rollout.samples > 1:
        sampling = "set rl.algorithm.dynamic_sampling, so that groups without a signal are replaced"
    else:
        sampling = (
            "set rl.rollout.samples to 2 or more and rl.algorithm.dynamic_sampling, so that groups"
            " without a signal are replaced"
        )
    steps = ["check that the reward is calibrated: better answers must score higher", sampling]
    if rl.critic is None:
        steps.append("take a critic with warm-up (rl.preset: vapo)")
    elif rl.critic.warmup_iterations == 0:
        steps.append("warm the critic up (rl.critic.warmup_iterations)")
    steps.append(
        "check that the verifier accepts right answers to these prompts"
        f" (`rl-pipeline ask never-rewarded RUN --store {stream.recipe.store}`)"
    )
    return "; ".join(f"({number}) {step}" for number, step in enumerate(steps, start=1))


STALL_CHECKS = (
    Check(
        name="stalled",
        reads=(NEVER_RIGHT,),
        measure=iterations_without_gain,
        threshold=RECENT,
        quiet=_little_to_learn,
        says=(
            "validation accuracy ({last[val/accuracy]:.3f}) has not risen above noise for"
            " {value:.0f} iterations (threshold {threshold:.0f}), while"
            " {now[critic/never_right_fraction]:.1%} of the prompts were wrong in every sample"
        ),
        remedy=remedies,
    ),
)

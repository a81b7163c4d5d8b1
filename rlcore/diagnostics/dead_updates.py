"""Checks of whether an update changed anything; the remedy for one that did not depends on the
cause."""

from collections.abc import Callable

from rlcore.diagnostics.measures import (
    ABORTED,
    BROKEN,
    HOPELESS,
    LONGER_RESPONSES,
    MORE_CACHE,
    TRUNCATED,
    all_right,
    finite_critic_steps,
    finite_steps,
    has_critic,
)
from rlcore.diagnostics.types import Check, Stream


def _dead_share(learner: str) -> Callable[[Stream], float | None]:
    """Share of the steps of "actor" or "critic" that changed nothing; 1 where none was made."""

    def measure(stream: Stream) -> float | None:
        steps = stream.now[f"{learner}/optimizer_steps"]
        dead = stream.now[f"{learner}/zero_gradient_steps"] + stream.now[f"{learner}/skipped_steps"]
        return dead / steps if steps else 1.0

    return measure


def _all_skipped(learner: str) -> Callable[[Stream], float | None]:
    """Share of the steps of "actor" or "critic" that were not finite, None where none was made."""

    def measure(stream: Stream) -> float | None:
        steps = stream.now[f"{learner}/optimizer_steps"]
        return stream.now[f"{learner}/skipped_steps"] / steps if steps else None

    return measure


def _cut_off(stream: Stream) -> float:
    """Share of the responses that were cut off and are left out of the loss for it."""
    left_out = stream.recipe.rl.algorithm.mask_truncated
    return stream.now.get(TRUNCATED, 0.0) if left_out else 0.0


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
        measure=_all_skipped("actor"),
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
        measure=_all_skipped("critic"),
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
        measure=_dead_share("actor"),
        threshold=1.0,
        fatal_after=HOPELESS,
        quiet=all_right,
        says=_actor_says,
        remedy=_actor_remedy,
    ),
    Check(
        name="dead_critic_updates",
        reads=("critic/optimizer_steps", "critic/zero_gradient_steps", "critic/skipped_steps"),
        measure=_dead_share("critic"),
        threshold=1.0,
        fatal_after=HOPELESS,
        applies=has_critic,
        quiet=all_right,
        says=_critic_says,
        remedy=_critic_remedy,
    ),
)

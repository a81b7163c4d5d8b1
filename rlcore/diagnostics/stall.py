"""The check for learning that has stalled although there are prompts left to learn."""

from bisect import bisect_right

from rlcore.diagnostics.measures import VALIDATION
from rlcore.diagnostics.types import Check, Stream
from rlcore.rl.answers import NEVER_RIGHT, RECENT
from schemas.names import REWARD_MODEL

POOLED = 10  # iterations whose validations are averaged into one figure
WRONG_SHARE = 0.05


def iterations_without_gain(stream: Stream) -> float | None:
    """Return how long before the last validation its figure last rose above noise, in iterations.

    As in early stopping, a gain is a figure that exceeds that of the last gain by more than the
    noise: small gains add up, and fluctuation around a plateau is no gain. The figure at a
    validation is the mean over the ``POOLED`` iterations up to it, so that with frequent validation
    the luckiest one does not count as a gain. The noise is one standard error of a proportion over
    ``rl.validation.prompts``: every validation uses the same prompts, so two of them differ by less
    than two samples of prompts would. A critic's warm-up does not count, since the policy is not
    trained in it.
    """
    steps, values = stream.steps(VALIDATION), stream.history(VALIDATION)
    if not steps:
        return None
    rl = stream.recipe.rl
    gained, best = steps[0], values[0]
    for end, step in enumerate(steps, start=1):
        pooled = values[bisect_right(steps, step - POOLED) : end]
        figure = sum(pooled) / len(pooled)
        if figure - best > _standard_error(best, rl.validation.prompts):
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
    rule_rewards = any(f.weight and f.name != REWARD_MODEL for f in recipe.reward.functions)
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
    steps.append("check that the verifier accepts right answers to these prompts")
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
        shows=lambda evidence, iteration: evidence.never_right(iteration),
        remedy=remedies,
    ),
)

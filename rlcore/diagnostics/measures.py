"""Quantities that several checks compute from the metrics, and conditions on recipe and metrics
that explain a problem."""

import math
from collections.abc import Callable, Sequence

from rlcore.diagnostics.types import Stream
from rlcore.rl.metrics import VERIFIER_CORRELATION
from schemas.recipe import Recipe

HOPELESS = 20  # iterations in a row without anything to train on, after which the run ends
BROKEN = 3  # iterations in a row without a step that is finite, after which the run ends
PERSISTENT = 5
START = 3  # iterations whose mean is the baseline of the run
WINDOW = 20

ACCURACY = "critic/accuracy"
SCORE = "critic/score/mean"
VALIDATION = "val/accuracy"
VALIDATED = "val/judged_rows"
TRUNCATED = "response_length/clip_ratio"
ABORTED = "response/aborted_ratio"
EMPTY = "response/empty_ratio"
POLICY_LOSS = "actor/pg_loss"
CLIPPED_FIRST = "actor/pg_clipfrac_first_step"  # before a weight has moved
SAMPLE_SIZE = "rollout_corr/rollout_is_eff_sample_size"
MASKED = "rollout_corr/rollout_rs_masked_fraction"
# Metrics that may silence a check or determine its cause, in addition to those that it reads.
EXPLAINING = frozenset(
    {
        *(ACCURACY, VALIDATION, VALIDATED, TRUNCATED, ABORTED),
        *(VERIFIER_CORRELATION, POLICY_LOSS),
    }
)
# Of log-ratios that are normal noise 1.2 times as wide as the clip range: P(z > 1 / 1.2). With much
# wider noise one half of the tokens is clipped, those that it moves in the direction of the
# advantage, so a bound above one half can never fire.
CLIPPED_BY_NOISE = 0.2

BIGGER_GROUPS = "raise rl.rollout.samples"
LOWER_LR = "lower rl.update.optimizer.lr"
LONGER_RESPONSES = "raise rl.rollout.max_new_tokens"
MORE_CACHE = "raise hardware.rollout.kv_cache_gib or gpu_memory_utilization"


def finite_steps(stream: Stream) -> str:
    """Return what makes the policy's steps finite."""
    name = stream.recipe.rl.algorithm.policy_loss
    own = f"rl.algorithm.policy_loss = {name!r}" if ":" in name else ""  # "": one of ours
    # The weights are finite: a step that is not does not change them.
    if own and math.isnan(stream.now.get(POLICY_LOSS, 0.0)):
        return f"correct {own}, which returned values that are not finite"
    also = f", or correct {own}, whose gradient may not be" if own else ""
    return f"{LOWER_LR} or rl.update.optimizer.grad_clip{_more_precision(stream)}{also}"


def finite_critic_steps(stream: Stream) -> str:
    """Return what makes the critic's steps finite."""
    return f"lower rl.critic.optimizer.lr or its grad_clip{_more_precision(stream)}"


def _more_precision(stream: Stream) -> str:
    return "" if stream.recipe.model.dtype == "float32" else ", or use model.dtype: float32"


def share_of_start(name: str) -> Callable[[Stream], float | None]:
    """Measure the mean of the last ``START`` values over the mean of the first."""

    def measure(stream: Stream) -> float | None:
        start, recent = stream.start(name, START), stream.recent(name, START)
        return recent / start if start and recent is not None else None

    return measure


def mostly_right(stream: Stream) -> bool:
    """Return whether nine answers in ten are right: there is little left to learn, hence little
    signal.

    Under dynamic sampling the accuracy of the batch is that of the prompts that are not yet solved,
    so the last validation counts as well.
    """
    validated = stream.history(VALIDATION)
    return stream.now.get(ACCURACY, 0.0) >= 0.9 or (bool(validated) and validated[-1] >= 0.9)


def all_right(stream: Stream) -> bool:
    """Return whether every answer is right: nothing is left to learn.

    Of a reward that reports no accuracy: whether every answer has the best score so far, which not
    every answer always had.
    """
    if ACCURACY in stream.now:
        return stream.now[ACCURACY] == 1.0
    low, high = (stream.history(f"critic/score/{end}") for end in ("min", "max"))
    return bool(low) and low[-1] >= max(high) > min(low)


def steps_per_update(recipe: Recipe) -> int:
    """Return optimizer steps per iteration."""
    return recipe.rl.update.mini_batches * recipe.rl.update.epochs


def has_critic(recipe: Recipe) -> bool:
    """Return whether a critic is trained."""
    return recipe.rl.critic is not None


def learns_from_a_model(recipe: Recipe) -> bool:
    """Return whether a trained reward model is part of what is maximised."""
    return any(f.name == "reward_model" and f.weight for f in recipe.reward.functions)


def smooth(values: Sequence[float], width: int = 5) -> list[float]:
    """Return the means of ``width`` neighbours: ``len(values) - width + 1`` of them."""
    return [sum(values[i : i + width]) / width for i in range(len(values) - width + 1)]


def validated(stream: Stream) -> int:
    """Return how many answers the newest validation accuracy is of: fewer than
    ``rl.validation.prompts`` where the data has fewer."""
    known = stream.history(VALIDATED)
    return int(known[-1]) if known else stream.recipe.rl.validation.prompts


def accuracy_noise(prompts: int, *, least: float) -> float:
    """Return three standard errors of a difference of two accuracies over ``prompts`` each.

    ``least`` is the smallest difference that matters.
    """
    return max(least, 3 * (2 * 0.25 / prompts) ** 0.5)

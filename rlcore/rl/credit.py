"""Whether recorded advantages follow from the recorded rewards: the estimate, made again."""

import numpy as np
import polars as pl

from rlcore.learner.pool import LearnerPool
from rlcore.ragged import from_arrays, to_arrays
from rlcore.results.metrics import KIND as METRICS
from rlcore.rl.advantage import with_advantages
from rlcore.rl.batch import arrays_of, sequences_of
from rlcore.rl.recorded import RecordedIterations
from rlcore.rl.scores import estimated_kl
from schemas.errors import UserError
from schemas.recipe import Recipe

CREDIT = ("advantages", "returns")  # columns of the table advantages that follow from the rewards
KL_COEF = "actor/reward_kl_penalty_coef"


class CreditError(UserError):
    """Recorded advantages are not those of the recorded rewards."""


def check_credit(
    recorded: RecordedIterations, recipe: Recipe, iteration: int, learner: LearnerPool
) -> None:
    """Raise CreditError, naming the first trajectory, unless the advantages of ``iteration`` are
    those of its rewards.

    Log-probs and values are taken as recorded. ``learner`` holds the weights that the iteration
    sampled with; it is asked for the exact KL only, which is in no table.
    """
    kept = recorded.trained(iteration)
    frame = with_recorded_kl(kept, recipe, learner)
    made, _ = with_advantages(frame, recipe, recorded_kl_coef(recorded, iteration))
    for column in CREDIT:
        pairs = zip(to_arrays(kept[column]), to_arrays(made[column]), strict=True)
        for row, (old, new) in enumerate(pairs):
            if not np.array_equal(old, new, equal_nan=True):
                raise CreditError(_sentence(recorded, iteration, kept, row, column, old, new))


def with_recorded_kl(frame: pl.DataFrame, recipe: Recipe, learner: LearnerPool) -> pl.DataFrame:
    """Return a recorded ``frame`` with the column ``kl`` as its learners estimated it."""
    kl, masks = recipe.rl.algorithm.kl, to_arrays(frame["loss_mask"])
    old, ref = arrays_of(frame, "old_logprobs"), arrays_of(frame, "ref_logprobs")
    if old is not None and ref is not None:
        estimate = estimated_kl(old, ref, masks, kl.estimator)
        return frame.with_columns(from_arrays("kl", estimate, pl.Float64))
    if not (kl.uses_reference and kl.where == "reward"):
        return frame
    answer = learner.logprobs(
        sequences_of(frame), recipe.rl.rollout.temperature, targets="loss_mask", full_kl=True
    )
    return frame.with_columns(from_arrays("kl", answer.result().kls, pl.Float32))


def recorded_kl_coef(recorded: RecordedIterations, iteration: int) -> float | None:
    """Return the coefficient of the KL that was taken from the reward; None where none was."""
    ref = recorded.store.find(METRICS, f"{recorded.key}/{iteration:06d}")
    if ref is None:
        return None
    here = (pl.col("name") == KL_COEF) & (pl.col("step") == iteration)
    found = recorded.store.table(ref, METRICS).filter(here)["value"]
    return found.item() if found.len() else None


def _sentence(
    recorded: RecordedIterations,
    iteration: int,
    frame: pl.DataFrame,
    row: int,
    column: str,
    old: np.ndarray,
    new: np.ndarray,
) -> str:
    name, score = frame["trajectory_id"][row], frame["score"][row]
    places = np.flatnonzero(old != new) if len(old) == len(new) else np.array([0])
    token = int(places[0]) if len(places) else 0
    return (
        f"iteration {iteration} of {recorded.name}: {column} of trajectory {name} at token {token}"
        f" are recorded as {old[token]:.6g}, and the recorded rewards (its score: {score}) give"
        f" {new[token]:.6g}; the rewards, or these {column}, are not those that it trained on"
    )

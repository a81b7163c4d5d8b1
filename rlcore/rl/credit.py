"""Whether recorded advantages follow from the recorded rewards: the estimate, made again."""

import numpy as np
import polars as pl

from rlcore.learner.pool import LearnerPool
from rlcore.ragged import to_arrays
from rlcore.results.metrics import KIND as METRICS
from rlcore.rl.advantage import advantages_of
from rlcore.rl.batch import RolloutBatch, sequences_of
from rlcore.rl.recorded import RecordedIterations
from rlcore.rl.scores import BatchScores, estimated_kl
from rlcore.rl.turns import EpisodeCredit
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
    table = recorded.advantages(iteration)[1]
    batch = recorded.batch(iteration)
    scores = recorded_scores(batch, table, recipe, learner)
    frame, _ = advantages_of(
        batch,
        scores,
        rl=recipe.rl,
        kl_coef=recorded_kl_coef(recorded, iteration),
        episodes=EpisodeCredit.of(recipe),
    )
    for column in CREDIT:
        pairs = zip(to_arrays(table[column]), to_arrays(frame[column]), strict=True)
        for row, (old, new) in enumerate(pairs):
            if not np.array_equal(old, new, equal_nan=True):
                raise CreditError(_sentence(recorded, iteration, batch, row, column, old, new))


def recorded_scores(
    batch: RolloutBatch, table: pl.DataFrame, recipe: Recipe, learner: LearnerPool
) -> BatchScores:
    """Return what the learners said of ``batch``, from its table of advantages; without entropies,
    which no advantage reads."""
    kl, masks = recipe.rl.algorithm.kl, to_arrays(batch.rollouts["loss_mask"])
    old, ref, values = (
        None if table[name].is_null().any() else to_arrays(table[name])
        for name in ("old_logprobs", "ref_logprobs", "values")
    )
    per_token = None
    if old is not None and ref is not None:
        per_token = estimated_kl(old, ref, masks, kl.estimator)
    elif kl.uses_reference and kl.where == "reward":
        answer = learner.logprobs(
            sequences_of(batch.rollouts),
            recipe.rl.rollout.temperature,
            targets="loss_mask",
            full_kl=True,
        )
        per_token = answer.result().kls
    return BatchScores(masks, old, None, ref, per_token, values)


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
    batch: RolloutBatch,
    row: int,
    column: str,
    old: np.ndarray,
    new: np.ndarray,
) -> str:
    name = batch.rollouts["trajectory_id"][row]
    score = batch.rewards_in_order["score"][row]
    places = np.flatnonzero(old != new) if len(old) == len(new) else np.array([0])
    token = int(places[0]) if len(places) else 0
    return (
        f"iteration {iteration} of {recorded.name}: {column} of trajectory {name} at token {token}"
        f" are recorded as {old[token]:.6g}, and the recorded rewards (its score: {score}) give"
        f" {new[token]:.6g}; the rewards, or these {column}, are not those that it trained on"
    )

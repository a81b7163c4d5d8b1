"""All reward workers of a run, and its reward model, as one scorer."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlcore.cluster.types import Worker, gather
from rlcore.learner.pool import LearnerPool
from rlcore.models.packing import Sequences
from rlcore.rewards.types import Reward, RewardRow
from schemas.names import REWARD_MODEL
from schemas.outcomes import Outcome


class RewardPool:
    """Splits rows over reward workers and adds the scores of the reward model.

    ``row_timeout_s`` bounds one row, in seconds; one call of ``score`` may take that for each of a
    worker's rows, plus ``timeout_s``. ``offset`` is added to every score; ``model`` (frozen, head
    "value") counts with ``model_weight``. Without workers the model alone is the reward, and there
    are no verdicts on correctness.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        timeout_s: float,
        row_timeout_s: float,
        offset: float = 0.0,
        model: LearnerPool | None = None,
        model_weight: float = 1.0,
    ) -> None:
        self._workers = list(workers)
        self._timeout_s = timeout_s
        self._row_timeout_s = row_timeout_s
        self._offset = offset
        self._model, self._model_weight = model, model_weight

    def score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        """Return one reward per row, in order."""
        rewards = self._score_by_functions(rows)
        if self._model is not None and rows:
            values = model_scores(self._model, rows)
            rewards = [
                add_model_score(reward, value, self._model_weight)
                for reward, value in zip(rewards, values.tolist(), strict=True)
            ]
        return [
            reward if reward.score is None else replace(reward, score=reward.score + self._offset)
            for reward in rewards
        ]

    def _score_by_functions(self, rows: Sequence[RewardRow]) -> list[Reward]:
        if not self._workers:
            return [Reward(row.trajectory_id, Outcome.OK, 0.0) for row in rows]
        bare = [replace(row, token_ids=None) for row in rows]
        share = max(1, -(-len(bare) // len(self._workers)))
        pendings = [
            worker.start("score", bare[start : start + share], self._row_timeout_s, len(bare))
            for worker, start in zip(self._workers, range(0, len(bare), share), strict=False)
        ]
        return [
            one
            for part in gather(pendings, self._timeout_s + share * self._row_timeout_s)
            for one in part
        ]


def model_scores(model: LearnerPool, rows: Sequence[RewardRow]) -> np.ndarray:
    """Return [rows] float64: the reward model's score at the last token of prompt + response."""
    token_ids = [np.asarray(row.token_ids, dtype=np.int32) for row in rows]
    sequences = Sequences(
        token_ids=token_ids,
        loss_mask=[np.zeros(len(ids), dtype=bool) for ids in token_ids],
    )
    values = model.values(sequences, targets="last")
    return np.array([value[-1] for value in values], dtype=np.float64)


def add_model_score(reward: Reward, value: float, weight: float) -> Reward:
    """Return ``reward`` with weight x value added to its score and listed as a part.

    A row that a function of weight other than 0 could not score stays without a score.
    """
    parts = {**reward.parts, REWARD_MODEL: value}
    score = None if reward.score is None else reward.score + weight * value
    return replace(reward, score=score, parts=parts)

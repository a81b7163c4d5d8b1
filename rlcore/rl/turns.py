"""What the turns of an episode are credited with."""

import json
from dataclasses import dataclass

import numpy as np

from rlcore.ragged import mean_of, to_arrays
from rlcore.rl.batch import RolloutBatch
from schemas.names import ENVIRONMENT
from schemas.outcomes import StopReason
from schemas.recipe import Recipe


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """``per_token``: per token of each row, what is given at the end of a turn. ``penalties``
    [rows]: what invalid turns take off the score. ``metrics``: of the episodes."""

    per_token: list[np.ndarray]
    penalties: np.ndarray
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class EpisodeCredit:
    """``weight`` of the environment's rewards in the score; ``penalty`` of a turn that it cannot
    read; ``max_turns`` of an episode."""

    weight: float
    penalty: float
    max_turns: int

    @classmethod
    def of(cls, recipe: Recipe) -> "EpisodeCredit | None":
        """Return how ``recipe`` credits turns; None where an episode is one turn."""
        section = recipe.environment
        if section is None:
            return None
        weights = [f.weight for f in recipe.reward.functions if f.name == ENVIRONMENT]
        return cls(sum(weights), section.invalid_action_penalty, section.turns)

    @staticmethod
    def of_rows(
        batch: RolloutBatch, episodes: "EpisodeCredit | None"
    ) -> tuple[TurnCredit | None, int]:
        """Return the credit of each turn of ``batch`` and the most turns of a row; None and 1 where
        a row is one turn."""
        return (None, 1) if episodes is None else (episodes.of_batch(batch), episodes.max_turns)

    def of_batch(self, batch: RolloutBatch) -> TurnCredit:
        """Return the credit of each turn of ``batch``, at the turn's last policy token: weight x
        the environment's reward, where that is a part of the row's score, less the penalty.

        The penalty is AlphaApollo's ``apply_invalid_action_penalty``: part of the score that group
        statistics see. Turns are not normalised by their number: where the policy decides when to
        stop, that is biased.
        """
        ends = to_arrays(batch.rollouts["turn_ends"])
        rewards = to_arrays(batch.rollouts["turn_rewards"])
        valid = [np.asarray(row, dtype=bool) for row in batch.rollouts["valid_actions"].to_list()]
        lengths = batch.rollouts["token_ids"].list.len().to_list()
        counted = [ENVIRONMENT in json.loads(p or "{}") for p in batch.rewards_in_order["parts"]]
        penalties, per_token = np.zeros(len(ends)), []
        for row, length in enumerate(lengths):
            invalid = self.penalty * ~valid[row]
            penalties[row] = invalid.sum()
            tokens = np.zeros(length)
            weight = self.weight if counted[row] else 0.0
            np.add.at(tokens, ends[row] - 1, weight * rewards[row] - invalid)
            per_token.append(tokens)
        return TurnCredit(
            per_token,
            penalties,
            {
                "episode/valid_action_ratio": float(np.concatenate(valid).mean()),
                "episode/done_ratio": mean_of(
                    batch.rollouts["stop_reason"] == StopReason.DONE.value
                ),
                "episode/environment_reward/mean": float(np.mean([r.sum() for r in rewards])),
            },
        )

"""Reward models that users bring, as the reward pool asks them: by the messages of a conversation.

Ids of the policy mean nothing to a model of another tokenizer, so the model renders the messages
itself (TRL hands over the policy's ids, and declines to change that: trl#1674, #3595).
"""

from collections.abc import Mapping, Sequence

from rlcore.cluster.types import Worker
from rlcore.rewards.types import RewardRow
from schemas.reward_model import BroughtRewardModel


class BroughtModel:
    """A ``Classifier`` in its worker, as the reward pool asks it. ``timeout_s`` bounds a call."""

    def __init__(self, worker: Worker, model: BroughtRewardModel, *, timeout_s: float) -> None:
        self._worker, self._model, self._timeout_s = worker, model, timeout_s

    def scores(self, rows: Sequence[RewardRow]) -> list[float | str]:
        """Return what each response is worth; why there is no score, for one that has none."""
        conversations = [conversation(row, self._model.observations) for row in rows]
        return self._worker.start("score", conversations).result(self._timeout_s)


def conversation(row: RewardRow, observations: bool) -> list[Mapping[str, str]]:
    """Return the messages of ``row``'s prompt and what followed: the policy's answer; of an episode
    the policy's turns as one, or with ``observations`` all turns."""
    if observations and row.turns:
        return [*row.messages, *row.turns]
    said = [turn["content"] for turn in row.turns if turn["role"] == "assistant"]
    answer = "\n".join(said) if said else row.response
    return [*row.messages, {"role": "assistant", "content": answer}]

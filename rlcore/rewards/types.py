"""The input and output of scoring."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from schemas.outcomes import FinishReason, Outcome


@dataclass(frozen=True, slots=True)
class RewardRow:
    """One response with the data of its prompt; all values are JSON values."""

    trajectory_id: str
    data_source: str
    response: str  # decoded, special tokens dropped
    ground_truth: str | None
    extra_info: Mapping[str, Any]
    finish_reason: str  # a ``FinishReason``
    num_tokens: int  # that the policy sampled, stop token included
    prompt: str | None = None  # text of the prompt's messages; only f(prompt, response) reads it
    token_ids: Sequence[int] | None = None  # of prompt and response; only a reward model reads them

    @classmethod
    def of_prompt(
        cls,
        prompt: Mapping[str, Any],
        *,
        trajectory_id: str,
        response: str,
        finish_reason: str,
        num_tokens: int,
        token_ids: Sequence[int],
    ) -> "RewardRow":
        """Build the row of one response to ``prompt``, which has the columns of the Prompts table.

        The other arguments are the fields of their name.
        """
        return cls(
            trajectory_id=trajectory_id,
            data_source=prompt["data_source"],
            response=response,
            ground_truth=prompt["ground_truth"],
            extra_info=json.loads(prompt["extra_info"]),
            finish_reason=finish_reason,
            num_tokens=num_tokens,
            prompt=prompt_text(prompt["prompt"]),
            token_ids=token_ids,
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a reward function of weight 0 has no result for a row; the row keeps its score."""

    outcome: str  # Outcome.TIMEOUT or Outcome.ERROR
    detail: str


@dataclass(frozen=True, slots=True)
class Reward:
    """The score of one response. ``score`` is None when there is none: outcome timeout (the clock
    ended it), error (reward code, judge) or aborted (the engine)."""

    trajectory_id: str
    outcome: str  # an ``Outcome``
    score: float | None
    correct: bool | None = None  # None where the function does not check correctness
    counts: bool = True  # False: ``correct`` is the verdict of a function of weight 0
    parts: Mapping[str, float] = field(default_factory=dict)  # unweighted, by function name
    detail: str = ""
    seconds: float = 0.0  # wall clock
    answer: str | None = None  # the answer extracted from the response
    failures: Mapping[str, Failure] = field(default_factory=dict)  # by function of weight 0


Scorer = Callable[[RewardRow], Reward]


class Scorers(Protocol):
    """Scores a batch of rows."""

    def score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        """Return one reward per row, in order."""
        ...


def score_finished(
    rows: Sequence[RewardRow], score: Callable[[list[RewardRow]], list[Reward]]
) -> list[Reward]:
    """Return one reward per row, in order: that of ``score`` for responses that the engine
    finished.

    Responses that it aborted, or that have no token, get the outcome "aborted" and no score, since
    they say nothing about the policy. Rollouts, validation, evaluation and sampled preferences are
    all scored by this.
    """
    finished = [row for row in rows if row.finish_reason != FinishReason.ABORT and row.num_tokens]
    scored = iter(score(finished) if finished else [])
    kept = {id(row) for row in finished}
    return [
        next(scored)
        if id(row) in kept
        else Reward(
            row.trajectory_id, Outcome.ABORTED, None, detail="the engine aborted the response"
        )
        for row in rows
    ]


def prompt_text(messages: list[Mapping[str, str]]) -> str:
    """Return the contents of a prompt's messages, a line break between them."""
    return "\n".join(message["content"] for message in messages)

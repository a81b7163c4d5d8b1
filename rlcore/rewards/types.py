"""What every scorer takes and returns: a row to score, and its reward or why it has none."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, Protocol

from schemas.outcomes import FinishReason, Outcome


@dataclass(frozen=True)  # without slots: hundreds go between processes, at half the time
class RewardRow:
    """One response with the data of its prompt; all values are JSON values."""

    trajectory_id: str
    data_source: str
    response: str  # decoded, special tokens dropped
    ground_truth: str | None
    extra_info: Mapping[str, Any]
    finish_reason: str  # a ``FinishReason``
    num_tokens: int  # that the policy sampled, stop token included
    prompt: str | None = None  # text of the prompt's messages; f(prompt, response) and f(rows) read
    group: str = ""  # the prompt's uid: rows of one prompt are scored by one call of f(rows)
    style: str = "rule"  # verl's reward_model.style, by which functions may choose their rows
    # What followed the prompt in an environment, {role, content} each; ``response`` is the last of
    # the policy's. Empty without an environment, like the environment's reward per turn.
    turns: Sequence[Mapping[str, str]] = ()
    turn_rewards: Sequence[float] = ()
    failure: str = ""  # why the environment could not continue; such a row is not scored
    # Of the prompt and what the policy sampled, no observations: a tool could write the answer.
    # Only a reward model reads them.
    token_ids: Sequence[int] | None = None
    messages: Sequence[Mapping[str, str]] = ()  # of the prompt; only a reward model reads them
    other: str | None = None  # the response that a judge compares it with

    @classmethod
    def of_prompt(cls, prompt: Mapping[str, Any], **of_response: Any) -> "RewardRow":
        """Build the row of one response to ``prompt``, which has the columns of the Prompts table.

        ``of_response``: all other fields; ``response`` and ``token_ids`` hold nothing that the
        policy has not sampled, but for the prompt's ids.
        """
        return cls(
            data_source=prompt["data_source"],
            ground_truth=prompt["ground_truth"],
            extra_info=json.loads(prompt["extra_info"]),
            prompt=prompt_text(prompt["prompt"]),
            group=prompt["uid"],
            style=prompt["reward_style"],
            messages=prompt["prompt"],
            **of_response,
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a reward function of weight 0 has no result for a row; the row keeps its score."""

    outcome: str  # Outcome.TIMEOUT or Outcome.ERROR
    detail: str


@dataclass(frozen=True)  # without slots: hundreds go between processes, at half the time
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
    verdicts: Mapping[str, Any] = field(default_factory=dict)  # by judge: what it answered

    @classmethod
    def of(cls, row: RewardRow, score: float, correct: bool | None = None, **more: Any) -> "Reward":
        """Return the reward of a row that has a score, and a verdict unless ``correct`` is None."""
        outcome = Outcome.WRONG if correct is False else Outcome.OK
        return cls(row.trajectory_id, outcome, score, correct=correct, **more)

    @classmethod
    def no_answer(cls, row: RewardRow, why: str = "") -> "Reward":
        """Return the reward of a response that holds no answer, which is wrong."""
        return cls(row.trajectory_id, Outcome.NO_ANSWER, 0.0, correct=False, detail=why)

    @classmethod
    def lost(
        cls, row: RewardRow, why: str, outcome: Outcome = Outcome.ERROR, **more: Any
    ) -> "Reward":
        """Return the reward of a row that has no score."""
        return cls(row.trajectory_id, outcome, None, detail=why, **more)

    @property
    def verdicts_json(self) -> str | None:
        """``verdicts`` as a JSON object; None where no judge was asked."""
        return json.dumps(self.verdicts, sort_keys=True) if self.verdicts else None


# What a function says of a row. The rest of a reward is not its to say: whose row it is, what a
# judge answered, and what came of other functions.
FUNCTION_FIELDS = ("outcome", "score", "correct", "parts", "detail", "seconds", "answer")

Scorer = Callable[[RewardRow], Reward]
# How a function is given rows: one after the other, those of a prompt at once, or many of which
# each waits for something else.
Kind = Literal["rows", "groups", "awaited"]


class Scorers(Protocol):
    """Scores a batch of rows."""

    def start(self, row: RewardRow) -> None:
        """Note that ``score`` will be asked for ``row``, which may be begun now; return at once."""
        ...

    def score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        """Return one reward per row, in order."""
        ...


def groups_of(rows: Sequence[RewardRow]) -> list[list[int]]:
    """Return the indices of each prompt's rows, which are asked for one after the other.

    Greedy answers that are asked for before the samples are a separate group.
    """
    return [list(group) for _, group in groupby(range(len(rows)), lambda i: rows[i].group)]


def is_finished(row: RewardRow) -> bool:
    """Return whether engine and environment finished the episode: it tells of the policy."""
    return row.finish_reason != FinishReason.ABORT and row.num_tokens > 0 and not row.failure


def score_finished(
    rows: Sequence[RewardRow], score: Callable[[list[RewardRow]], list[Reward]]
) -> list[Reward]:
    """Return one reward per row, in order: that of ``score`` for responses that were finished.

    Responses that the engine aborted, or that have no token, get the outcome "aborted", those whose
    environment failed "error", and no score, since they say nothing about the policy. Rollouts,
    validation, evaluation and sampled preferences are all scored by this.
    """
    finished = [row for row in rows if is_finished(row)]
    scored = iter(score(finished) if finished else [])
    return [next(scored) if is_finished(row) else _unfinished(row) for row in rows]


def _unfinished(row: RewardRow) -> Reward:
    if row.failure:
        return Reward.lost(row, f"environment: {row.failure}")
    return Reward.lost(row, "the engine aborted the response", Outcome.ABORTED)


def spoken_text(response: str, turns: Sequence[Mapping[str, str]] | None) -> str:
    """Return a whole episode for people, turn by turn; ``response`` where it was one turn."""
    if not turns:
        return response
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)


def prompt_text(messages: list[Mapping[str, str]]) -> str:
    """Return the contents of a prompt's messages, a line break between them."""
    return "\n".join(message["content"] for message in messages)

"""What is scored and what comes of it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rlcore.rollout.types import Generation


@dataclass(frozen=True, slots=True)
class RewardRow:
    """One response and what its prompt says about it; all values are JSON values."""

    trajectory_id: str
    data_source: str
    response: str  # decoded, special tokens dropped
    ground_truth: str | None
    extra_info: Mapping[str, Any]
    finish_reason: str  # "stop" | "length" | "abort"
    num_tokens: int  # of the response, its stop token included
    prompt: str | None = None  # text of the prompt's messages; only f(prompt, response) reads it
    token_ids: Sequence[int] | None = None  # prompt and response; only a reward model reads them

    @classmethod
    def of_prompt(
        cls,
        prompt: Mapping[str, Any],
        *,
        trajectory_id: str,
        response: str,
        generation: "Generation",
    ) -> "RewardRow":
        """Build the row of one generation for ``prompt``, a row of the Prompts table."""
        return cls(
            trajectory_id=trajectory_id,
            data_source=prompt["data_source"],
            response=response,
            ground_truth=prompt["ground_truth"],
            extra_info=json.loads(prompt["extra_info"]),
            finish_reason=generation.finish_reason,
            num_tokens=len(generation.token_ids),
            prompt=prompt_text(prompt["prompt"]),
            token_ids=[*prompt["prompt_ids"], *generation.token_ids],
        )


@dataclass(frozen=True, slots=True)
class Reward:
    """The score of one response. ``score`` is None when there is none: outcome timeout or error."""

    trajectory_id: str
    outcome: str  # "ok" | "wrong" | "no_answer" | "timeout" | "error"
    score: float | None
    correct: bool | None = None  # None where the function judges no correctness
    parts: Mapping[str, float] = field(default_factory=dict)  # unweighted, by function name
    detail: str = ""
    seconds: float = 0.0  # wall clock
    answer: str | None = None  # what was taken for the answer


Scorer = Callable[[RewardRow], Reward]


class Scorers(Protocol):
    """Scores a batch of rows."""

    def score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        """Return one reward per row, in order."""
        ...


def prompt_text(messages: list[Mapping[str, str]]) -> str:
    """Return the contents of a prompt's messages, a line break between them."""
    return "\n".join(message["content"] for message in messages)

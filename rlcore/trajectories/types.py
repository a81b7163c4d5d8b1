"""One episode: what is asked for, and what came of it.

Producer: ``collect``. Consumers: the rollout phase, validation, evaluation, sampled preferences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.engines.types import Generation
from rlcore.rewards.types import RewardRow
from schemas.outcomes import StopReason


@dataclass(frozen=True, slots=True)
class Request:
    """An episode to sample: ``prompt``, a row of the Prompts table, for the ``sample``-th time.

    ``seed`` decides every token of it, so an episode can be drawn again alone.
    """

    trajectory_id: str
    prompt: Mapping[str, Any]
    sample: int
    seed: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the policy, and what an environment made of it.

    ``observation``: token ids that the environment answers with, none after the last turn.
    ``valid``: whether it could read the answer.
    """

    generation: Generation
    observation: Sequence[int] = ()
    reward: float = 0.0
    valid: bool = True


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One sampled episode. ``text``: its last turn decoded, without special tokens and the stop
    string that ended it; for rewards and people, training reads token ids. ``messages``: what
    followed the prompt, in an environment; ``failure``: why the environment could not go on, ""
    where it could."""

    request: Request
    turns: tuple[Turn, ...]
    text: str
    stop_reason: StopReason
    messages: tuple[Mapping[str, str], ...] = ()
    failure: str = ""

    @property
    def last(self) -> Generation:
        """What the policy sampled in its last turn."""
        return self.turns[-1].generation

    @property
    def num_tokens(self) -> int:
        """Tokens that the policy sampled, stop tokens included."""
        return sum(len(turn.generation.token_ids) for turn in self.turns)

    def reward_row(self) -> RewardRow:
        """Return what is scored."""
        return RewardRow.of_prompt(
            self.request.prompt,
            trajectory_id=self.request.trajectory_id,
            response=self.text,
            finish_reason=self.last.finish_reason,
            num_tokens=self.num_tokens,
            turns=self.messages,
            turn_rewards=[turn.reward for turn in self.turns] if self.messages else (),
            failure=self.failure,
            token_ids=[
                *self.request.prompt["prompt_ids"],
                *(token for turn in self.turns for token in turn.generation.token_ids),
            ],
        )

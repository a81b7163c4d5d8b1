"""One episode: what is asked for, and what came of it.

Producer: ``collect``. Consumers: the rollout phase, validation, evaluation, sampled preferences.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    """One sampled episode. ``text``: its last turn decoded, special tokens dropped; for rewards and
    people, training reads token ids. ``messages``: what followed the prompt, in an environment;
    ``failure``: why the environment could not go on, "" where it could."""

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

    def token_ids(self) -> np.ndarray:
        """Return [tokens] int32: the prompt, then each turn and its observation."""
        parts = (part for t in self.turns for part in (t.generation.token_ids, t.observation))
        return _joined([self.request.prompt["prompt_ids"], *parts], np.int32)

    def loss_mask(self) -> np.ndarray:
        """Return [tokens] bool, True where the policy sampled the token."""
        return self._over_tokens(lambda g: np.ones(len(g.token_ids)), bool)

    def logprobs(self) -> np.ndarray:
        """Return [tokens] float64, the engine's log-probs (nats), 0 where ``loss_mask`` is not."""
        return self._over_tokens(lambda g: np.asarray(g.logprobs), np.float64)

    def turn_ends(self) -> np.ndarray:
        """Return [turns] int32: tokens of the episode up to and with each turn's last."""
        answers = np.array([len(turn.generation.token_ids) for turn in self.turns])
        whole = answers + [len(turn.observation) for turn in self.turns]
        starts = len(self.request.prompt["prompt_ids"]) + np.cumsum(whole) - whole
        return (starts + answers).astype(np.int32)

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

    def _over_tokens(
        self, of_generation: Callable[[Generation], np.ndarray], dtype: type
    ) -> np.ndarray:
        """Return [tokens]: ``of_generation`` on what the policy sampled, 0 on all else."""
        parts = (
            part
            for turn in self.turns
            for part in (of_generation(turn.generation), np.zeros(len(turn.observation)))
        )
        return _joined([np.zeros(len(self.request.prompt["prompt_ids"])), *parts], dtype)


def _joined(parts: Iterable[Sequence[int] | np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.asarray(part, dtype=dtype) for part in parts])

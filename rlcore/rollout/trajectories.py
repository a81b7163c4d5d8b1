"""One episode: what is asked for, what came of it, and many of them as the columns of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
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
    """One sampled episode. ``text``: its last turn decoded, without special tokens and the stop
    string that ended it; for rewards and people, training reads token ids. ``messages``: what
    followed the prompt, in an environment; ``failure``: why the environment could not continue, ""
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


@dataclass(frozen=True, slots=True)
class Joined:
    """All tokens and all turns of some trajectories, one trajectory after the other.

    ``token_ids`` [tokens] int32: each prompt, then its turns and what followed them.
    ``loss_mask`` [tokens] bool: True where the policy sampled the token. ``logprobs`` [tokens]
    float64: the engine's (nats), 0 where the mask is not. ``lengths`` [trajectories] int64: tokens
    of each. ``turn_ends`` [turns] int64: tokens of the trajectory up to and with the turn's last.
    ``turns`` [trajectories] int64: how many each has.
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    logprobs: np.ndarray
    lengths: np.ndarray
    turn_ends: np.ndarray
    turns: np.ndarray


def joined(trajectories: Sequence[Trajectory]) -> Joined:
    """Return the tokens and turns of ``trajectories``."""
    turns = np.array([len(one.turns) for one in trajectories], dtype=np.int64)
    parts: list[Sequence[int]] = []  # of each: the prompt, then a turn and what followed it
    for one in trajectories:
        parts.append(one.request.prompt["prompt_ids"])
        for turn in one.turns:
            parts += (turn.generation.token_ids, turn.observation)
    within = np.arange(len(parts)) - np.repeat(_starts(1 + 2 * turns), 1 + 2 * turns)
    sampled, lengths = within % 2 == 1, np.fromiter(map(len, parts), dtype=np.int64)
    ends = np.cumsum(lengths)
    loss_mask = np.repeat(sampled, lengths)
    logprobs = np.zeros(len(loss_mask))
    logprobs[loss_mask] = np.fromiter(
        chain.from_iterable(turn.generation.logprobs for one in trajectories for turn in one.turns),
        dtype=np.float64,
        count=int(loss_mask.sum()),
    )
    whole = np.diff(ends[np.cumsum(1 + 2 * turns) - 1], prepend=0)
    return Joined(
        token_ids=np.fromiter(chain.from_iterable(parts), dtype=np.int32, count=len(loss_mask)),
        loss_mask=loss_mask,
        logprobs=logprobs,
        lengths=whole,
        turn_ends=ends[sampled] - np.repeat(_starts(whole), turns),
        turns=turns,
    )


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths) - lengths

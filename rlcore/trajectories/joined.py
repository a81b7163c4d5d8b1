"""Trajectories end to end, as the columns of tables hold them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from rlcore.trajectories.types import Trajectory


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
    parts: list[Sequence[int]] = []  # of each: the prompt, then a turn and what followed, by turns
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

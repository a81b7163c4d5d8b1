"""Trajectories end to end hold, token for token, what was sampled and what followed."""

import numpy as np
import pytest

from rlcore.engines.types import Generation
from rlcore.models.weight_digest import WeightStamp
from rlcore.rollout.trajectories import Request, Trajectory, Turn, joined
from schemas.outcomes import FinishReason, StopReason


def trajectory(rng: np.random.Generator, turns: int) -> Trajectory:
    def ids(least: int) -> list[int]:
        return rng.integers(0, 500, rng.integers(least, 6)).tolist()

    played = []
    for number in range(turns):
        answer = ids(0 if number == turns - 1 else 1)  # an engine that aborts has sampled nothing
        generation = Generation(
            answer,
            rng.normal(size=len(answer)).tolist(),
            FinishReason.STOP,
            WeightStamp(0, "w"),
        )
        played.append(Turn(generation, ids(0)))
    request = Request("t", {"prompt_ids": ids(1)}, 0, 0)
    return Trajectory(request, tuple(played), "", StopReason.DONE)


@pytest.mark.parametrize("turns", [(), (1,), (1, 1, 1), (3, 1, 2), (1, 4)])
def test_each_token_stands_where_it_was_said(turns: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(turns))
    whole = joined(trajectories := [trajectory(rng, count) for count in turns])
    token, turn = 0, 0
    for one, length, count in zip(trajectories, whole.lengths, whole.turns, strict=True):
        said = list(one.request.prompt["prompt_ids"])
        mask, logprobs, ends = [False] * len(said), [0.0] * len(said), []
        for each in one.turns:
            said += [*each.generation.token_ids, *each.observation]
            mask += [True] * len(each.generation.token_ids) + [False] * len(each.observation)
            logprobs += [*each.generation.logprobs, *[0.0] * len(each.observation)]
            ends.append(len(said) - len(each.observation))
        assert whole.token_ids[token : token + length].tolist() == said
        assert whole.loss_mask[token : token + length].tolist() == mask
        assert whole.logprobs[token : token + length].tolist() == logprobs
        assert whole.turn_ends[turn : turn + count].tolist() == ends
        token, turn = token + length, turn + count
    assert len(whole.token_ids) == len(whole.loss_mask) == len(whole.logprobs) == token
    assert len(whole.turn_ends) == turn

"""The policy with tools, and what is said of an environment or an engine that fails."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rlcore.algorithms.seeds import stream_seed
from rlcore.engines.types import Generation, Sampling
from rlcore.evolve.agents import Agents, Ask
from rlcore.rollout.trajectories import Request, Trajectory, Turn
from schemas.errors import UserError
from schemas.outcomes import FinishReason, StopReason
from tests.rlcore.evolve.scripted import SEED, TOKENIZER, Engines, agents, problem, section
from tests.rlcore.rollout.scripted import STAMP


class Episodes:
    """Plays two turns by a function of the request; the last text is the answer."""

    def __init__(self, failure: str = "") -> None:
        self._failure = failure
        self.played: list[Request] = []

    def play(
        self, requests: Sequence[Request], sampling: Sampling, tokenizer: Any
    ) -> Iterator[Trajectory]:
        del sampling, tokenizer
        for request in reversed(requests):
            self.played.append(request)
            ids = TOKENIZER("<answer>4</answer>", add_special_tokens=False)["input_ids"]
            turns = [Turn(Generation(list(ids), [-1.0] * len(ids), FinishReason.STOP, STAMP))] * 2
            messages = ({"role": "assistant", "content": "call"}, {"role": "tool", "content": "4"})
            yield Trajectory(
                request,
                tuple(turns),
                "<answer>4</answer>",
                StopReason.DONE,
                messages,
                self._failure,
            )


def asks() -> list[Ask]:
    rows = [problem("a", "2 and 2?"), problem("b", "3 and 1?")]
    return [Ask({**row, "prompt_ids": [1, 2]}, ("policy", 1)) for row in rows]


def with_episodes(episodes: Any) -> Agents:
    return replace(agents(Engines({}), section()), episodes=episodes)


def test_a_policy_with_tools_plays_episodes_and_a_verifier_does_not() -> None:
    episodes = Episodes()
    asked = with_episodes(episodes)
    replies = asked.answers(asks())
    assert [(reply.value, reply.attempts) for reply in replies] == [("4", 1), ("4", 1)]
    assert [len(reply.trajectory.turns) for reply in replies] == [2, 2]
    first = next(request for request in episodes.played if request.prompt["uid"] == "a")
    assert first.seed == stream_seed(SEED, "evolve", "policy", 1, "a", 0)
    asked.verdicts(asks())
    assert len(episodes.played) == 2


def test_an_environment_that_always_fails_is_said() -> None:
    with pytest.raises(UserError, match="the environment failed in all 2 episodes: no server"):
        with_episodes(Episodes("no server")).answers(asks())


def test_what_the_engine_aborted_is_asked_again() -> None:
    class Aborting(Engines):
        def stream(
            self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
        ) -> Iterator[tuple[int, Generation]]:
            for index, one in super().stream(prompts, seeds, sampling):
                yield index, replace(one, finish_reason=FinishReason.ABORT)

    aborted = agents(Aborting({}, other="<answer>4</answer>"), section()).answers(asks())
    assert [(reply.value, reply.attempts) for reply in aborted] == [(None, 3), (None, 3)]

"""The one path that samples. Its callers score, record or rank what it yields."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

from rlcore.engines.stop_strings import answer_text
from rlcore.engines.types import Generation, Sampling
from rlcore.rewards.types import Reward, RewardRow, score_finished
from rlcore.trajectories.episodes import Episodes
from rlcore.trajectories.types import Request, Trajectory, Turn
from schemas.outcomes import StopReason


class Engines(Protocol):
    """What samples; ``engines.pool.EnginePool`` is the one in use."""

    def stream(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> Iterator[tuple[int, Generation]]:
        """Yield (index of the prompt, its continuation) as they complete."""
        ...

    def pulled(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> Iterator[tuple[int, Generation]]:
        """Yield the same where engines take the next prompt as they get free."""
        ...


def collect(
    requests: Sequence[Request],
    sampling: Sampling,
    engines: Engines,
    tokenizer: Any,
    episodes: Episodes | None = None,
    *,
    schedule: Literal["lockstep", "streaming"] = "lockstep",
) -> Iterator[Trajectory]:
    """Sample every request; yield its trajectory as it completes, in no fixed order. With
    ``episodes`` a trajectory has several turns, which an environment answers, by its own engines.
    ``schedule``: see ``rl.rollout.schedule``.

    Whatever depends on the order, or on which rows share a batch, takes ``in_order``: no bit may
    depend on which engine was faster.
    """
    is_streamed = schedule == "streaming"
    if episodes is not None:
        play = episodes.stream if is_streamed else episodes.play
        yield from play(requests, sampling, tokenizer)
        return
    prompts = [request.prompt["prompt_ids"] for request in requests]
    seeds = [request.seed for request in requests]
    sample = engines.pulled if is_streamed else engines.stream
    for index, generation in sample(prompts, seeds, sampling):
        text = answer_text(tokenizer, generation, sampling)
        reason = StopReason.of_single_turn(generation.finish_reason)
        yield Trajectory(requests[index], (Turn(generation),), text, reason)


def in_order(requests: Sequence[Request], trajectories: Iterator[Trajectory]) -> list[Trajectory]:
    """Return the trajectories in the order of their ``requests``, once all are there."""
    done = {trajectory.request.trajectory_id: trajectory for trajectory in trajectories}
    return [done[request.trajectory_id] for request in requests]


def score(
    trajectories: Sequence[Trajectory], scorer: Callable[[list[RewardRow]], list[Reward]]
) -> list[Reward]:
    """Return one reward per trajectory, in order; what the engine aborted has no score."""
    return score_finished([trajectory.reward_row() for trajectory in trajectories], scorer)

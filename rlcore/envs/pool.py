"""All environment workers of a run as one."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rlcore.cluster.types import Worker, as_completed
from rlcore.envs.process import ATTEMPTS, EnvironmentProcess
from rlcore.envs.streaming import AnswerStream
from rlcore.envs.types import Answer, Call, Description
from schemas.environment import EnvironmentSection


class EnvironmentWorker:
    """An ``EnvironmentProcess`` in a process of the cluster; not thread-safe."""

    def __init__(self, section: EnvironmentSection) -> None:
        self._process = EnvironmentProcess(section)

    def describe(self) -> Description:
        """Return what the environment says of its class."""
        return self._process.describe()

    def exchange(self, calls: Sequence[Call], least: int, wait_s: float = math.inf) -> list[Answer]:
        """Begin ``calls``, wait for ``least`` answers; see ``EnvironmentProcess.exchange``."""
        return self._process.exchange(calls, least, wait_s)

    def end(self, episodes: Sequence[str]) -> None:
        """Forget ``episodes``."""
        self._process.end(episodes)

    def close(self) -> None:
        """End the process."""
        self._process.close()


class EnvironmentPool:
    """Divides episodes over environment workers; an episode stays with its worker.

    ``timeout_s`` bounds one call of a worker, in addition to the limits of its steps, in seconds.
    """

    def __init__(
        self, workers: Sequence[Worker], section: EnvironmentSection, *, timeout_s: float
    ) -> None:
        self.section = section
        self._workers = list(workers)
        self._timeout_s = timeout_s
        self._owners: dict[str, int] = {}

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """JSON schemas of the tools; none in a game."""
        return self._tools

    @cached_property
    def _tools(self) -> Sequence[Mapping[str, Any]]:
        return self._workers[0].start("describe").result(self._timeout_s).tools

    def answers(self, calls: Sequence[Call]) -> dict[str, Answer]:
        """Return the answer to each of ``calls``, one per episode, by episode."""
        shares: dict[int, list[Call]] = defaultdict(list)
        for call in calls:
            shares[self._owner(call)].append(call)
        pendings = [
            self._workers[owner].start("exchange", share, len(share))
            for owner, share in shares.items()
        ]
        names = [f"environment worker '{self._workers[owner].name}'" for owner in shares]
        longest = max(map(len, shares.values()), default=0)
        limit_s = self._timeout_s + longest * ATTEMPTS * (self.section.timeout_s + 1)
        return {
            answer.episode: answer
            for _, part in as_completed(pendings, limit_s, names=names, method="exchange")
            for answer in part
        }

    def streaming(self) -> AnswerStream:
        """Begin a rollout whose calls come at any time and are answered as their steps end."""
        return AnswerStream(self._workers, self._owner, timeout_s=self._timeout_s)

    def _owner(self, call: Call) -> int:
        """Return which worker holds the episode of ``call``; a reset chooses one."""
        if call.text is None:
            self._owners[call.episode] = len(self._owners) % len(self._workers)
        return self._owners[call.episode]

    def end(self, episodes: Sequence[str]) -> None:
        """Let the workers forget ``episodes``."""
        shares: dict[int, list[str]] = defaultdict(list)
        for episode in episodes:
            shares[self._owners.pop(episode)].append(episode)
        for owner, share in shares.items():
            self._workers[owner].start("end", share)

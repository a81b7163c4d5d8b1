"""One environment worker of a run, as an object of the cluster."""

import math
from collections.abc import Sequence

from rlcore.envs.process import EnvironmentProcess
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

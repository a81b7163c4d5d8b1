"""Waiting for a run, and knowing its processes, also those that come later and what they leave."""

import contextlib
import time
from collections.abc import Callable

import psutil

from tests.chaos.victims import shared_weights

LOOK_S = 0.2


def until(done: Callable[[], bool], limit_s: float, *, look_s: float = LOOK_S) -> float | None:
    """Return the seconds until ``done()``, or None after ``limit_s``."""
    begun = time.monotonic()
    while time.monotonic() - begun < limit_s:
        if done():
            return time.monotonic() - begun
        time.sleep(look_s)
    return None


class Family:
    """The processes of a run: those below its ancestors whenever ``look`` was called."""

    def __init__(self) -> None:
        self._members: set[psutil.Process] = set()

    def look(self, *ancestors: psutil.Process) -> None:
        """Take in ``ancestors``, and all that is below them or any member now."""
        self._members.update(ancestors)
        known = {member.pid for member in self._members if member.is_running()}
        others = [one for one in psutil.process_iter(["ppid"]) if one.pid not in known]
        while found := [one for one in others if one.info["ppid"] in known]:
            self._members.update(found)
            known.update(one.pid for one in found)
            others = [one for one in others if one.pid not in known]

    def living(self) -> list[str]:
        """Return those that still run, a line each."""
        found = []
        for process in self._members:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {process.name()}")
        return sorted(found)

    def shared_memory(self) -> list[str]:
        """Return the files of weights that they left in shared memory."""
        pids = {str(process.pid) for process in self._members}
        return [str(path) for path in shared_weights() if path.name.split("-")[2] in pids]

    def lingering(self, limit_s: float) -> list[str]:
        """Return the processes that still run after at most ``limit_s``."""
        until(lambda: not self.living(), limit_s)
        return self.living()

    def left(self, limit_s: float) -> list[str]:
        """Return what is left of the run after at most ``limit_s``: processes and files."""
        return [*self.lingering(limit_s), *self.shared_memory()]

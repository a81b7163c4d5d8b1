"""How often the page and the report of a run that goes on may be written."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

SHARE = 0.03  # of the time
LONGEST_S = 60.0  # between two: people look at a page to see what a run does now


class Pace:
    """Keeps something that repeats to a share of the time: after it kept a processor busy for t
    seconds, the next is due t / share seconds later, ``LONGEST_S`` at most. Waiting, for a server
    or for the run's own threads, costs the run nothing and does not count.

    pace = Pace()
    if pace.due():
        with pace.measured():
            write_report(run, folder)
    """

    __slots__ = ("_next", "_share")

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._next = float("-inf")

    def due(self) -> bool:
        """Return whether it may be done now."""
        return time.monotonic() >= self._next

    def left_s(self) -> float:
        """Return the seconds until then."""
        return max(0.0, self._next - time.monotonic())

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure one, also where it fails."""
        began = time.thread_time()
        try:
            yield
        finally:
            wait_s = (time.thread_time() - began) / self._share
            self._next = time.monotonic() + min(wait_s, LONGEST_S)

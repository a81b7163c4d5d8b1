"""The page of a run while it goes: published from a thread after each stage and validation.

The thread never delays or ends the run: it looks at the store as it is when it gets to it, so of
several refreshes the last one counts, and its first error is logged and the run goes on. What
repeats all through a run takes a share of the time only (``Pace``).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from statistics import median
from time import monotonic, thread_time
from typing import Any

from rlcore.report.facts import Ending
from tasks.run_page.view import RUNNING, View

LAST_S = 30.0  # for the last pass, at the end of a run
STOPPED_S = 5.0  # for that of a run that is being stopped, before its process is killed
SHARE = 0.03  # of the time
LONGEST_S = 60.0  # between two: people look at a page to see what a run does now


class Pace:
    """Keeps something that repeats to a share of the time: after it kept a processor busy for t
    seconds, the next is due t / share seconds later, ``LONGEST_S`` at most. Waiting, for a server
    or for the run's own threads, costs the run nothing and does not count.

    pace = Pace()
    if pace.due():
        with pace.measured():
            view.publish()
    """

    __slots__ = ("_next", "_share")

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._next = float("-inf")

    def due(self) -> bool:
        """Return whether it may be done now."""
        return monotonic() >= self._next

    def left_s(self) -> float:
        """Return the seconds until then."""
        return max(0.0, self._next - monotonic())

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure one, also where it fails."""
        began = thread_time()
        try:
            yield
        finally:
            wait_s = (thread_time() - began) / self._share
            self._next = monotonic() + min(wait_s, LONGEST_S)


class RunPage:
    """Publishes ``view`` in the background. Made by ``RunPage.open``."""

    def __init__(self, view: View, log: Callable[[str], None]) -> None:
        self._view, self._log = view, log
        self._wanted = threading.Event()
        self._at_once = False
        self._pace = Pace()
        self._ending: Ending | None = None
        self._failed = False
        self.seconds: list[float] = []  # of each pass
        # In the caller's context: Prefect's settings and the flow run's logger are there.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._publish,), name="run-page", daemon=True
        )

    @classmethod
    @contextmanager
    def open(cls, view: View, log: Callable[[str], None]) -> "Iterator[RunPage]":
        """Yield the page of a run; whatever ends the context is on the page as the run's end."""
        page = cls(view, log)
        page._thread.start()
        try:
            yield page
        except Exception as error:
            page.end(Ending("failed", f"{type(error).__name__}: {error}"), LAST_S)
            raise
        except BaseException as stopped:  # a signal: Prefect's cancel, Ctrl-C
            page.end(Ending("stopped", type(stopped).__name__), STOPPED_S)
            raise
        page.end(Ending("completed"), LAST_S)

    def refresh(self, *, at_once: bool = False) -> None:
        """Publish what the run has come to, in the background: when the pace allows it, or
        ``at_once``, for what a run does a few times only."""
        self._at_once |= at_once
        self._wanted.set()

    def end(self, ending: Ending, limit_s: float = LAST_S) -> None:
        """Publish the run's end and stop; does nothing after the first call."""
        if self._ending is not None:
            return
        self._ending = ending
        self._wanted.set()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self._log(f"the run's page did not finish within {limit_s:.0f} s; it may lack the end")

    def figures(self) -> dict[str, Any]:
        """Return the number of passes, and their median and greatest seconds."""
        if not self.seconds:
            return {"passes": 0, "median": None, "max": None}
        return {
            "passes": len(self.seconds),
            "median": round(median(self.seconds), 3),
            "max": round(max(self.seconds), 3),
        }

    def _publish(self) -> None:
        ending = None
        while ending is None:
            self._wanted.wait()
            self._wanted.clear()
            while self._ending is None and not self._at_once and not self._pace.due():
                self._wanted.wait(self._pace.left_s())
                self._wanted.clear()  # before the conditions are looked at: none is missed
            self._at_once = False
            ending = self._ending
            with self._pace.measured():
                self._pass(ending)

    def _pass(self, ending: Ending | None) -> None:
        began = monotonic()
        try:
            self._view.publish(ending or RUNNING)
        except Exception as error:  # noqa: BLE001  the run goes on without its page
            if not self._failed:
                self._log(f"the run's page is not up to date ({type(error).__name__}: {error})")
            self._failed = True
        self.seconds.append(monotonic() - began)

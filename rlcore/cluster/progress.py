"""Signs of progress from inside a long call, for the process that waits for it.

A live process may be stuck, and a busy one may not answer, so the call itself counts what it has
done: micro-batches, engine steps, rows.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 2.0  # between two reports


@dataclass(frozen=True, slots=True)
class Sign:
    """How often ``advance`` was called in process ``pid``, and the last note of that process."""

    pid: int
    count: int
    note: str = ""


class _Counter:
    def __init__(self) -> None:
        self.count = 0
        self.note = ""
        self.told_s = float("-inf")
        self.report: Callable[[int, str], None] | None = None


_COUNTER = _Counter()


def advance(note: str = "") -> None:
    """Record that the current call has progressed; ``note``: a message for the user, logged
    once."""
    counter = _COUNTER
    counter.count += 1
    counter.note = note or counter.note
    now = time.monotonic()
    if counter.report is not None and (note or now - counter.told_s >= EVERY_S):
        counter.told_s = now
        counter.report(counter.count, counter.note)


def report_to(report: Callable[[int, str], None] | None) -> None:
    """Pass the progress from now on to ``report``, at most every ``EVERY_S`` seconds, and every
    note at once."""
    _COUNTER.report, _COUNTER.note = report, ""

"""What this process is doing, and signs of progress from inside a long call for who waits for
it.

A live process may be stuck, and a busy one may not answer, so the call itself counts what it has
done: micro-batches, engine steps, rows.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_UNDER_WAY: list[tuple[str, float]] = []


@contextmanager
def activity(what: str) -> Iterator[None]:
    """Name what the body does: a few words that "... is running" may follow."""
    entry = (what, time.monotonic())
    _UNDER_WAY.append(entry)
    try:
        yield
    finally:
        _UNDER_WAY.remove(entry)


def current() -> tuple[str, float] | None:
    """Return the innermost activity and its seconds so far; None outside of any."""
    if not _UNDER_WAY:
        return None
    what, since = _UNDER_WAY[-1]
    return what, time.monotonic() - since


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
    """Record that the current call has progressed; ``note``: a message to the user, logged once."""
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

"""Signs of progress from inside a long call, for whoever waits for it.

A process that lives may be stuck, and one that is busy may not answer questions, so the call itself
counts: micro-batches, engine steps, rows.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 2.0  # between two reports


@dataclass(frozen=True, slots=True)
class Sign:
    """How often ``advance`` was called in process ``pid``, and what was last noted there."""

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
    """Say that the call under way got on; ``note``: what a person should know of it, told once."""
    counter = _COUNTER
    counter.count += 1
    counter.note = note or counter.note
    now = time.monotonic()
    if counter.report is not None and (note or now - counter.told_s >= EVERY_S):
        counter.told_s = now
        counter.report(counter.count, counter.note)


def report_to(report: Callable[[int, str], None] | None) -> None:
    """Give every ``EVERY_S`` seconds of progress, and every note, to ``report``."""
    _COUNTER.report = report

"""Who was busy with what, and when, on this process's monotonic clock: what a timeline is drawn
from."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter

HELD = 10_000  # spans that nobody takes: the oldest fall out


@dataclass(frozen=True, slots=True)
class Span:
    """``lane`` was busy with ``what``; both times are of ``perf_counter``, s."""

    lane: str
    what: str
    began_s: float
    ended_s: float


class Spans:
    """Collects spans; threads may share one."""

    def __init__(self) -> None:
        self._held: deque[Span] = deque(maxlen=HELD)

    def add(self, lane: str, what: str, began_s: float) -> None:
        """Add what began then and ends now."""
        self._held.append(Span(lane, what, began_s, perf_counter()))

    def extend(self, spans: Iterable[Span]) -> None:
        """Add what was collected elsewhere."""
        self._held.extend(spans)

    def taken(self) -> list[Span]:
        """Return what was collected, and begin again without it."""
        return [self._held.popleft() for _ in range(len(self._held))]


def in_order(spans: Iterable[Span]) -> list[Span]:
    """Return ``spans`` by when they began, each once."""
    return sorted(dict.fromkeys(spans), key=lambda span: span.began_s)

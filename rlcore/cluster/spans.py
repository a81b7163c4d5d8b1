"""Who was busy with what, and when, on this process's monotonic clock: what a timeline is drawn
from."""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter

HELD = 10_000  # spans that nobody takes: the oldest fall out
MOST = 32  # of a lane and of what it does, in what is recorded of an iteration


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


def joined(spans: Iterable[Span], most: int = MOST) -> list[Span]:
    """Return ``spans`` by when they began, each once. Of a lane and what it does there are at most
    ``most``: those with the least time between them become one, that time included."""
    grouped: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in dict.fromkeys(spans):
        grouped[span.lane, span.what].append(span)
    found = [each for group in grouped.values() for each in _joined(group, most)]
    return sorted(found, key=lambda span: span.began_s)


def _joined(spans: list[Span], most: int) -> list[Span]:
    spans = sorted(spans, key=lambda span: span.began_s)
    if len(spans) <= most:
        return spans
    gaps = [after.began_s - before.ended_s for before, after in pairwise(spans)]
    widest = sorted(range(len(gaps)), key=gaps.__getitem__)[len(gaps) - most + 1 :]
    ends = [*sorted(widest), len(spans) - 1]
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [
        replace(spans[start], ended_s=max(span.ended_s for span in spans[start : end + 1]))
        for start, end in zip(starts, ends, strict=True)
    ]

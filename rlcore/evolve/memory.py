"""The vote on a solution, and which solutions the next round sees. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A solution that a round came to. ``score``: the vote, 0 or 1. ``length``: tokens that the
    policy sampled for it."""

    round: int
    solution: str
    report: str
    score: int
    length: int


def vote(verdicts: Sequence[int]) -> int:
    """Return 1 where more than half of ``verdicts`` (0 or 1 each) are 1, else 0: a tie rejects.

    >>> vote([1, 1, 0]), vote([1, 0]), vote([])
    (1, 0, 0)
    """
    return int(2 * sum(verdicts) > len(verdicts))


def report_of(verdicts: Sequence[int], reports: Sequence[str | None]) -> str:
    """Return the report of the first verifier that agrees with the vote; "" where none gave one.

    ``reports``: None of a verifier that could not be read.
    """
    decision = vote(verdicts)
    agreeing = (
        report
        for verdict, report in zip(verdicts, reports, strict=True)
        if report is not None and verdict == decision
    )
    return next(agreeing, "")


def best(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Return the ``count`` best of ``entries``, the best first: those with the lowest sum of two
    ranks, by score from high to low and by length from short to long.

    A rank counts the entries that are strictly better, so equal ones share a rank. Of equal sums
    the higher score comes first, then the later round.
    """

    def order(entry: Entry) -> tuple[int, int, int]:
        by_score = sum(other.score > entry.score for other in entries)
        by_length = sum(other.length < entry.length for other in entries)
        return by_score + by_length, -entry.score, -entry.round

    return sorted(entries, key=order)[:count]

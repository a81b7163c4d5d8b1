"""Signs of progress are few, and no note of a call is lost."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from rlcore.cluster import progress
from rlcore.cluster.progress import advance, report_to

Told = list[tuple[int, str]]


class Clock:
    """Stands still until it is moved; every test begins long after the one before."""

    now_s = 1e9

    def monotonic(self) -> float:
        return Clock.now_s


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What is reported."""
    Clock.now_s += 1e6
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=Clock().monotonic))
    told: Told = []
    report_to(lambda count, note: told.append((count, note)))
    yield told
    report_to(None)


def test_a_busy_call_reports_now_and_then(told: Told) -> None:
    """A message per micro-batch would cost more than the micro-batch."""
    for _ in range(1000):
        advance()
    assert len(told) == 1
    Clock.now_s += progress.EVERY_S
    advance()
    (first, _), (second, _) = told
    assert second - first == 1000


def test_a_note_is_told_at_once_and_kept(told: Told) -> None:
    advance()
    advance("3 rows are lost")
    assert told[-1][1] == "3 rows are lost"
    Clock.now_s += progress.EVERY_S
    advance()
    assert [note for _, note in told[1:]] == ["3 rows are lost"] * 2


def test_without_a_listener_nothing_happens(told: Told) -> None:
    report_to(None)
    advance("nobody hears")
    assert told == []

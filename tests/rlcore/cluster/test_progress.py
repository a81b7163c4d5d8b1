"""Signs of progress are few, and no note of a call is lost."""

from collections.abc import Iterator

import pytest

from rlcore.cluster import progress
from rlcore.cluster.progress import advance, report_to

Told = list[tuple[int, str]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What is reported, by a clock that stands still."""
    monkeypatch.setattr(progress.time, "monotonic", lambda: 1e9)
    told: Told = []
    report_to(lambda count, note: told.append((count, note)))
    yield told
    report_to(None)


def test_a_busy_call_reports_now_and_then(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message per micro-batch would cost more than the micro-batch."""
    for _ in range(1000):
        advance()
    assert len(told) <= 1
    monkeypatch.setattr(progress.time, "monotonic", lambda: 1e9 + progress.EVERY_S)
    advance()
    assert len(told) <= 2
    assert told[-1][0] - told[0][0] == 1000 or len(told) == 1


def test_a_note_is_told_at_once_and_kept(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    advance()
    advance("3 rows are lost")
    assert told[-1][1] == "3 rows are lost"
    monkeypatch.setattr(progress.time, "monotonic", lambda: 2e9)
    advance()
    assert told[-1][1] == "3 rows are lost"


def test_without_a_listener_nothing_happens(told: Told) -> None:
    report_to(None)
    advance("nobody hears")
    assert told == []

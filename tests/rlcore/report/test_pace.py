"""Reports of a long run take a small share of its time."""

from contextlib import suppress

import pytest

from rlcore.report.pace import LONGEST_S, Pace


def test_a_report_that_took_a_second_waits_for_half_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("rlcore.report.pace.time.monotonic", lambda: now)
    monkeypatch.setattr("rlcore.report.pace.time.thread_time", lambda: now)
    pace = Pace(share=0.03)
    assert pace.due()
    with suppress(OSError), pace.measured():
        now += 1.0
        raise OSError
    assert not pace.due()
    now += 33.0
    assert not pace.due()
    now += 0.5
    assert pace.due()


def test_a_page_is_never_older_than_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine a page showed the first stage for as long as anybody looked at it."""
    now, busy = 100.0, 0.0
    monkeypatch.setattr("rlcore.report.pace.time.monotonic", lambda: now)
    monkeypatch.setattr("rlcore.report.pace.time.thread_time", lambda: busy)
    pace = Pace(share=0.03)
    with pace.measured():
        now += 500.0  # of a server that does not answer, of which 30 ms are ours
        busy += 0.03
    assert pace.left_s() == pytest.approx(1.0)
    with pace.measured():
        busy += 30.0
    assert pace.left_s() == pytest.approx(LONGEST_S)

"""Reports of a long run take a small share of its time."""

from contextlib import suppress

import pytest

from rlcore.report.pace import Pace


def test_a_report_that_took_a_second_waits_for_half_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("rlcore.report.pace.time.monotonic", lambda: now)
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

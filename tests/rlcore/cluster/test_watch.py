"""A call that hangs is told apart from one that is slow, by what is usual here."""

import pytest

from rlcore.cluster.progress import Sign
from rlcore.cluster.watch import Watch


def _looks(looking: Watch, method: str, counts: list[int]) -> str | None:
    """Check once a second; return why to give up, once that is found."""
    for count in counts:
        reason = looking.look(method, Sign(7, count), stopped=False, passed_s=1.0)
        if reason is not None:
            return reason
    return None


def test_the_usual_silence_is_learnt() -> None:
    looking = Watch(stall_s=10.0)
    assert _looks(looking, "step", [0] * 60) is None, "the first call loads and compiles"
    looking.answered("step", passed_s=0.0)
    looking.begin()
    assert _looks(looking, "step", [1, *[2] * 250]) is None, "59 seconds are usual"
    assert _looks(looking, "step", [2] * 60) == "hangs (process 7): no progress for 295 s"
    looking.begin()
    assert _looks(looking, "save", [2] * 1000) is None


def test_a_wait_that_was_itself_stopped_counts_little() -> None:
    looking = Watch(stall_s=10.0, heard=2)
    looking.look("step", Sign(7, 1), stopped=False, passed_s=1.0)
    assert looking.look("step", Sign(7, 1), stopped=True, passed_s=3600.0) is None


def test_a_note_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    looking = Watch(stall_s=10.0, name="reward-0")
    for count, note in ((1, ""), (2, "lost"), (3, "lost"), (4, "found")):
        looking.look("step", Sign(7, count, note), stopped=False, passed_s=1.0)
    assert caplog.messages == ["reward-0: lost", "reward-0: found"]

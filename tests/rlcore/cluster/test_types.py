"""A wait for several workers ends with all results, or with the name of whom it waited for."""

import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from rlcore.cluster.types import WorkerDied, WorkerTimeout, as_completed, new_rendezvous_file


class Answer:
    """Comes after ``polls`` looks; an exception is raised."""

    def __init__(self, value: Any, polls: int = 0) -> None:
        self.value, self.polls = value, polls

    def result(self, timeout_s: float) -> Any:
        del timeout_s
        self.polls -= 1
        if self.polls >= 0:
            raise WorkerTimeout("not yet")
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def completed(*answers: Answer, timeout_s: float = 60) -> list[tuple[int, Any]]:
    names = [f"rank {i}" for i in range(len(answers))]
    return list(as_completed(answers, timeout_s, names=names, method="step"))


def test_results_come_as_they_are_ready_under_their_own_number() -> None:
    assert completed(Answer("a", polls=2), Answer("b"), Answer("c", polls=1)) == [
        (1, "b"),
        (2, "c"),
        (0, "a"),
    ]
    assert completed() == []


def test_the_error_of_one_is_not_hidden_behind_the_wait_for_its_peers() -> None:
    """A rank that failed leaves the others in a collective for ten minutes."""
    with pytest.raises(ValueError, match="out of memory"):
        completed(Answer("never", polls=10**6), Answer(ValueError("out of memory"), polls=3))


def test_the_death_of_a_rank_is_the_error_and_not_what_its_peers_say_of_it() -> None:
    """A collective fails in the ranks that live before it is known that one died, and their error
    would pass for one of the call."""
    broken = RuntimeError("connection closed by peer")
    with pytest.raises(WorkerDied, match="learner-1"):
        completed(Answer("a"), Answer(broken), Answer(broken), Answer(WorkerDied("learner-1")))


def test_who_does_not_answer_is_named_with_the_setting_to_raise() -> None:
    with pytest.raises(
        WorkerTimeout, match=r"rank 1 did not finish step within 0 s; raise hardware\.timeouts"
    ):
        completed(Answer("a"), Answer("b", polls=10**6), timeout_s=0)


def test_ranks_meet_in_a_file_of_this_user_only() -> None:
    """torch's own store listens on every address and asks no one who he is."""
    path = Path(urlparse(new_rendezvous_file()).path)
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_bytes() == b""
    finally:
        path.unlink()

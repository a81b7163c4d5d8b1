"""Calls that come at any time: each is answered as its step ends, by the worker of its episode."""

import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import pytest

from rlcore.cluster.in_process import InProcessWorker
from rlcore.cluster.types import WorkerTimeout
from rlcore.envs.pool import AnswerStream, EnvironmentPool
from rlcore.envs.process import EnvironmentProcess
from rlcore.envs.types import Answer, Call
from schemas.environment import EnvironmentSection

pytestmark = pytest.mark.timeout(60)
SECTION = EnvironmentSection(name="tests.rlcore.envs.samples:Counter", workers=2, timeout_s=20)


class Threaded:
    """A worker whose calls run in a thread of their own, as those of another process do."""

    def __init__(self, worker: EnvironmentProcess, name: str) -> None:
        self.name, self._worker = name, worker

    def start(self, method: str, *arguments: Any) -> "Running":
        return Running(lambda: getattr(self._worker, method)(*arguments))

    def stop(self) -> None:
        """Nothing runs."""


class Running:
    def __init__(self, work: Callable[[], Any]) -> None:
        self._answers: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._answers.append(work()))
        self._thread.start()

    def result(self, timeout_s: float) -> Any:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise WorkerTimeout("not yet")
        return self._answers[0]


@pytest.fixture
def pool() -> Iterator[EnvironmentPool]:
    made = [EnvironmentProcess(SECTION) for _ in range(2)]
    threaded = [Threaded(worker, f"environment-{i}") for i, worker in enumerate(made)]
    yield EnvironmentPool(threaded, SECTION, timeout_s=30)
    for worker in made:
        worker.close()


def answered(stream: AnswerStream, count: int) -> list[Answer]:
    found: list[Answer] = []
    until = monotonic() + 300
    while len(found) < count:
        assert monotonic() < until, f"{len(found)} of {count} are answered"
        found += stream.finished(0.5)
    return found


def said(answer: Answer) -> str:
    assert answer.step is not None
    return answer.step.messages[0]["content"]


def test_a_slow_step_keeps_no_other_waiting(pool: EnvironmentPool) -> None:
    """Episodes of the same worker, also those whose calls come while the slow one is under way."""
    stream = pool.streaming()
    stream.submit([Call(f"e{i}", row={}, seed=i) for i in range(6)])
    assert len(stream) == 6
    assert sorted(answer.episode for answer in answered(stream, 6)) == [f"e{i}" for i in range(6)]
    stream.submit([Call("e0", "hang"), Call("e2", "quick")])
    assert [said(answer) for answer in answered(stream, 1)] == ["2 quick"]
    stream.submit([Call("e4", "later"), Call("e1", "other")])
    assert sorted(said(answer) for answer in answered(stream, 2)) == ["1 other", "4 later"]
    assert len(stream) == 1
    assert stream.finished(0.0) == []


def test_calls_in_this_process_are_answered_too() -> None:
    worker = EnvironmentProcess(SECTION)
    try:
        pool = EnvironmentPool([InProcessWorker.of("environment", worker)], SECTION, timeout_s=30)
        stream = pool.streaming()
        stream.submit([Call("a", row={}, seed=1)])
        assert [answer.episode for answer in answered(stream, 1)] == ["a"]
        stream.submit([Call("a", "work")])
        assert [said(answer) for answer in answered(stream, 1)] == ["1 work"]
        assert (len(stream), stream.finished(60.0)) == (0, [])
    finally:
        worker.close()


def test_a_worker_that_does_not_answer_is_named() -> None:
    class Stuck:
        name = "environment-1"

        def start(self, method: str, *arguments: Any) -> Running:
            return Running(lambda: sleep(5.0))

        def stop(self) -> None:
            """Nothing runs."""

    stream = AnswerStream([Stuck()], lambda call: 0, timeout_s=0.05)
    stream.submit([Call("a", row={})])
    with pytest.raises(WorkerTimeout, match=r"'environment-1' did not finish exchange within"):
        stream.finished(1.0)

"""The schedule ``streaming`` of environments: calls come at any time and each answer is handed over
as its step ends, so that no episode waits for the slowest tool."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from rlcore.cluster.types import Polled, Worker
from rlcore.envs.types import Answer, Call

WAIT_S = 0.02  # of one call of a worker: for as long, what was submitted may wait
POLL_S = 0.001  # wait for one worker before the others are looked at


@dataclass(slots=True)
class _Worker:
    calls: Polled
    waiting: list[Call] = field(default_factory=list)
    under_way: int = 0  # calls that it was handed and has not answered


class AnswerStream:
    """Lets environments answer in no fixed order; ``owner`` says which worker has an episode.

    ``timeout_s`` bounds a call of a worker, in seconds.
    """

    def __init__(
        self, workers: Sequence[Worker], owner: Callable[[Call], int], *, timeout_s: float
    ) -> None:
        self._workers = [
            _Worker(Polled(worker, "environment worker", timeout_s + WAIT_S)) for worker in workers
        ]
        self._owner = owner

    def __len__(self) -> int:
        """Return the number of calls that are not answered."""
        return sum(len(each.waiting) + each.under_way for each in self._workers)

    def submit(self, calls: Sequence[Call]) -> None:
        """Add calls, one at a time of an episode; a worker that is free begins them at once."""
        for call in calls:
            self._workers[self._owner(call)].waiting.append(call)
        self._start_calls()

    def finished(self, timeout_s: float) -> list[Answer]:
        """Return what has been answered, after at most ``timeout_s`` seconds; at once where there
        is nothing to wait for.

        Raises what a worker raised, and WorkerTimeout with the name of one that does not answer.
        """
        deadline = monotonic() + timeout_s
        answers: list[Answer] = []
        while not answers:
            busy = [each for each in self._workers if each.calls.is_busy]
            left = max(0.0, deadline - monotonic())
            for each in busy:
                answered = each.calls.result(left if len(busy) == 1 else min(left, POLL_S)) or []
                each.under_way -= len(answered)
                answers += answered
            self._start_calls()
            if not busy or left == 0.0:
                break
        return answers

    def _start_calls(self) -> None:
        for each in self._workers:
            if each.calls.is_busy or not (each.waiting or each.under_way):
                continue
            each.under_way += len(each.waiting)
            each.calls.start("exchange", each.waiting, 1, WAIT_S)
            each.waiting = []

"""All environment workers of a run as one. Calls come at any time and each answer is handed over as
its step ends, so that no episode waits for the slowest tool; or a batch is answered as a whole."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Any

from rlcore.cluster.types import Polled, Worker
from rlcore.envs.types import Answer, Call
from schemas.environment import EnvironmentSection

WAIT_S = 0.02  # of one call of a worker: for as long, what was submitted may wait
POLL_S = 0.001  # wait for one worker before the others are looked at


class EnvironmentPool:
    """Divides episodes over workers (``EnvironmentProcess``); an episode stays with its worker.

    ``timeout_s`` bounds one call of a worker, in seconds.
    """

    def __init__(
        self, workers: Sequence[Worker], section: EnvironmentSection, *, timeout_s: float
    ) -> None:
        self.section = section
        self._workers = list(workers)
        self._timeout_s = timeout_s
        self._owners: dict[str, int] = {}

    @cached_property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """JSON schemas of the tools; none in a game."""
        return self._workers[0].start("tools").result(self._timeout_s)

    def answers(self, calls: Sequence[Call]) -> dict[str, Answer]:
        """Return the answer to each of ``calls``, one per episode, by episode."""
        stream = self.streaming()
        stream.submit(calls)
        found: dict[str, Answer] = {}
        while len(stream):
            found |= {answer.episode: answer for answer in stream.finished(self._timeout_s)}
        return found

    def streaming(self) -> "AnswerStream":
        """Begin a rollout whose calls come at any time and are answered as their steps end."""
        return AnswerStream(self._workers, self._owner, timeout_s=self._timeout_s)

    def _owner(self, call: Call) -> int:
        """Return which worker holds the episode of ``call``; a reset chooses one."""
        if call.text is None:
            self._owners[call.episode] = len(self._owners) % len(self._workers)
        return self._owners[call.episode]

    def end(self, episode: str) -> None:
        """Let its worker forget ``episode``."""
        self._workers[self._owners.pop(episode)].start("end", [episode])


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

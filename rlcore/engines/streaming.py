"""The schedule ``streaming``: requests come at any time and engines pull the next as they get free,
so that no episode waits for the slowest tool or engine.

Which engine samples a request, and beside which others, depends on time, so a rerun may differ in
the last bits, and then in a token. ``EnginePool.turn`` promises the same bits.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic, perf_counter

from rlcore.cluster.spans import Spans
from rlcore.cluster.types import Polled, WorkerError, is_lost
from rlcore.engines.members import Members
from rlcore.engines.types import Generation, Sampling, TurnRequest

WAIT_S = 0.05  # of one call of an engine: for as long, what finished or was submitted may wait
POLL_S = 0.001  # wait for one engine before the others are looked at


@dataclass(slots=True)
class _Engine:
    index: int
    calls: Polled
    under_way: dict[str, TurnRequest] = field(default_factory=dict)  # by key
    asked_s: float = 0.0  # when it was last asked for something while it had nothing to do


def lane(index: int) -> str:
    """Return what spans call the engine of that number, also once another is in its place."""
    return f"engine {index}"


class RequestStream:
    """Samples requests on whichever engine is free, in no fixed order.

    Example:
        stream = engines.streaming(sampling)
        stream.submit(first_turns)
        while len(stream) or busy:              # busy: environments that have not answered yet
            for key, generation in stream.finished(timeout_s=0.02):
                ...                             # pass it to its environment
            stream.submit(next_turns)           # of the environments that have answered

    An engine has at most ``in_flight`` requests under way, and no more than its share of all. It
    prefers turns of the episodes that it sampled last, whose tokens may be in its cache; the key of
    a turn is "<episode>/<turn>". ``timeout_s`` bounds a call of an engine, in seconds.
    """

    def __init__(
        self,
        members: Members,
        sampling: Sampling,
        *,
        in_flight: int,
        timeout_s: float,
        busy: Spans | None = None,
    ) -> None:
        """``busy`` gets a span for each time in which an engine has requests under way."""
        assert in_flight >= 1, "an engine without a request samples nothing"
        self._members, self._timeout_s = members, timeout_s
        self._busy = busy or Spans()
        self._engines = [_Engine(index, self._calls(index)) for index in range(len(members))]
        self._sampling, self._in_flight = sampling, in_flight
        self._queue: list[TurnRequest] = []
        self._unfinished: set[str] = set()  # keys
        self._last: dict[str, _Engine] = {}  # of each episode

    def __len__(self) -> int:
        """Return the number of requests that are not finished."""
        return len(self._unfinished)

    def submit(self, requests: Iterable[TurnRequest]) -> None:
        """Add requests; an engine that is free starts on them at once."""
        for request in requests:
            assert request.key not in self._unfinished, "a key names one request"
            self._unfinished.add(request.key)
            self._queue.append(request.plain())
        self._start_calls()

    def finished(self, timeout_s: float) -> list[tuple[str, Generation]]:
        """Return (key, continuation) of what has finished, after at most ``timeout_s`` seconds.

        It is empty when nothing has finished, and at once when there is nothing to wait for. Raises
        what an engine raised, and WorkerTimeout with the name of one that does not answer.
        """
        deadline = monotonic() + timeout_s
        done: list[tuple[str, Generation]] = []
        while not done:
            busy = [engine for engine in self._engines if engine.calls.is_busy]
            left = max(0.0, deadline - monotonic())
            for engine in busy:
                done += self._answer(engine, left if len(busy) == 1 else min(left, POLL_S))
            self._start_calls()
            if not busy or left == 0.0:
                break
        return done

    def _start_calls(self) -> None:
        share = -(-len(self) // len(self._engines))
        for engine in self._engines:
            if engine.calls.is_busy:
                continue
            room = max(0, min(self._in_flight, share) - len(engine.under_way))
            requests = [self._next_for(engine) for _ in range(min(room, len(self._queue)))]
            if not engine.under_way:
                engine.asked_s = perf_counter()
            engine.under_way |= {request.key: request for request in requests}
            if engine.under_way:
                engine.calls.start("advance", requests, self._sampling, WAIT_S)

    def _next_for(self, engine: _Engine) -> TurnRequest:
        """Take the oldest request out of the queue: of the engine's own episodes, else of new ones,
        else of another engine's."""
        ranks = {id(engine): 0, id(None): 1}
        request = min(
            self._queue, key=lambda each: ranks.get(id(self._last.get(_episode(each))), 2)
        )
        self._queue.remove(request)
        self._last[_episode(request)] = engine
        return request

    def _answer(self, engine: _Engine, wait_s: float) -> list[tuple[str, Generation]]:
        """Return what the engine's call has brought; nothing while it has not ended."""
        try:
            done = engine.calls.result(wait_s)
        except WorkerError as error:
            if not is_lost(error):
                raise
            self._replace(engine, error)
            return []
        if done is None:
            return []
        for key, _ in done:
            del engine.under_way[key]
            self._unfinished.remove(key)
        if done:
            self._members.answered(engine.index)
            if not engine.under_way:
                self._busy.add(lane(engine.index), "gen", engine.asked_s)
        return done

    def _calls(self, index: int) -> Polled:
        return Polled(self._members[index], "rollout engine", self._timeout_s)

    def _replace(self, engine: _Engine, error: WorkerError) -> None:
        """Have what a lost engine had under way sampled again, whole turns of it."""
        self._members.successor(engine.index, engine.calls.worker, error)
        engine.calls = self._calls(engine.index)
        self._queue = [*engine.under_way.values(), *self._queue]
        engine.under_way = {}


def _episode(request: TurnRequest) -> str:
    return request.key.rpartition("/")[0] or request.key

"""An engine that is lost: which one takes its place, what it holds, and that nobody else waits."""

from typing import Any

import pytest

from rlcore.cluster.types import WorkerDied, WorkerError, WorkerHung
from rlcore.engines.members import MOST, REPLACED
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Generation, Sampling, TurnRequest
from rlcore.models.weight_digest import WeightStamp, WeightSyncError, WeightUpdate
from schemas.outcomes import FinishReason
from tests.rlcore.engines.test_pool import STAMP, stream

UPDATE = WeightUpdate(STAMP, "/nowhere", {})
SAMPLING = Sampling(max_new_tokens=9)


class Mortal:
    """A worker of an engine that answers prompts with their ids; dies in the calls of ``dies``, as
    often as it names them."""

    def __init__(self, name: str, *dies: str, error: type[WorkerError] = WorkerDied) -> None:
        self.name, self.dies, self.error = name, [*dies], error
        self.holds = WeightStamp(0, "noise")
        self.knows = 0.0
        self.calls: list[str] = []
        self.stopped = False

    def start(self, method: str, *arguments: Any) -> Any:
        worker = self

        class Call:
            def result(self, timeout_s: float) -> Any:
                return worker.answer(method, *arguments)

        return Call()

    def answer(self, method: str, *arguments: Any) -> Any:
        self.calls.append(method)
        if self.stopped or method in self.dies:
            raise self.error(f"worker '{self.name}' died during {method}")
        if method == "load_weights":
            self.holds = arguments[0].stamp
        if method == "probe":
            return [[self.knows] * len(ids) for ids in arguments[0]]
        if method == "stamp":
            return self.holds
        if method in ("generate", "advance"):
            return [self._row(request, method) for request in arguments[0]]
        return self.holds

    def _row(self, request: TurnRequest, method: str) -> Any:
        row = Generation([*request.token_ids, request.seed], [0.0], FinishReason.STOP, self.holds)
        return (request.key, row) if method == "advance" else row

    def stop(self) -> None:
        self.stopped = True


class Site:
    """A pool of two engines, of which the first dies, and the ones that came in its place."""

    def __init__(self, *dies: str, after: tuple[str, ...] = (), **options: Any) -> None:
        self.first = Mortal("engine 0", *dies, **options)
        self.second = Mortal("engine 1")
        self.new: list[Mortal] = []
        self.after = after
        self.lines: list[str] = []
        self.pool = EnginePool(
            [self.first, self.second],
            timeout_s=5,
            sync_timeout_s=5,
            start_new=self.start_new,
            log=self.lines.append,
        )

    def start_new(self, index: int) -> Mortal:
        assert index == 0
        assert self.first.stopped, "the lost one ends before another begins"
        self.new.append(Mortal(f"engine {index}, again", *self.after))
        return self.new[-1]


PROMPTS = [[1, 2], [3], [4, 5], [6]]
EXPECTED = {0: [1, 2, 100], 1: [3, 101], 2: [4, 5, 102], 3: [6, 103]}


@pytest.mark.parametrize("schedule", ["stream", "pulled"])
@pytest.mark.parametrize("error", [WorkerDied, WorkerHung])
@pytest.mark.parametrize("method", ["begin", "generate", "advance", "load_weights", "probe"])
def test_the_same_rows_come_whatever_call_an_engine_dies_in(
    method: str, error: type[WorkerError], schedule: str
) -> None:
    site = Site(method, error=error)
    site.pool.load_weights(UPDATE)
    site.pool.start_probe([[1, 2, 3]])()
    assert stream(site.pool, PROMPTS, schedule) == EXPECTED
    asked = {"stream": "generate", "pulled": "advance"}[schedule]
    lost = method in ("begin", "load_weights", "probe", asked)
    assert [new.holds for new in site.new] == [STAMP] * lost
    assert site.pool.taken_losses().get(REPLACED, 0) == lost
    assert site.pool.taken_losses() == {}
    assert site.pool.stamp() == STAMP
    assert sum("engine 0' is lost and replaced" in line for line in site.lines) == lost


def test_the_others_sample_once() -> None:
    site = Site("generate")
    site.pool.load_weights(UPDATE)
    stream(site.pool, PROMPTS)
    assert site.second.calls.count("generate") == 1


def test_an_engine_that_is_lost_again_and_again_ends_the_rollout() -> None:
    """A batch that no engine survives would be sampled for ever."""
    site = Site("generate", after=("generate",))
    site.pool.load_weights(UPDATE)
    with pytest.raises(WorkerDied):
        stream(site.pool, PROMPTS)
    assert len(site.new) == MOST


def test_losses_that_are_apart_are_not_counted_together() -> None:
    site = Site("generate")
    site.pool.load_weights(UPDATE)
    for _ in range(MOST + 2):
        site.pool[0].dies = ["generate"]  # type: ignore[attr-defined]
        site.first.stopped = True
        assert stream(site.pool, PROMPTS) == EXPECTED
    assert len(site.new) == MOST + 2


def test_one_that_ran_out_of_memory_is_not_replaced() -> None:
    class Full(Mortal):
        def answer(self, method: str, *arguments: Any) -> Any:
            if method == "generate":
                raise WorkerDied("worker 'engine 0' died: the node was running low on memory")
            return super().answer(method, *arguments)

    site = Site()
    site.pool._workers[0] = Full("engine 0")
    with pytest.raises(WorkerDied, match="low on memory"):
        stream(site.pool, PROMPTS)
    assert not site.new


def test_a_pool_that_can_have_no_other_raises_what_it_did() -> None:
    pool = EnginePool([Mortal("engine 0", "generate")], timeout_s=5, sync_timeout_s=5)
    with pytest.raises(WorkerDied, match="'engine 0' died during generate"):
        stream(pool, PROMPTS)


@pytest.mark.parametrize("gap", [0.5, float("nan")])
def test_a_new_engine_that_answers_the_canary_otherwise_samples_nothing(gap: float) -> None:
    site = Site("generate")
    site.pool.load_weights(UPDATE)
    site.pool.start_probe([[1, 2, 3]])()

    def start_new(index: int) -> Mortal:
        site.new.append(Mortal("new"))
        site.new[-1].knows = gap
        return site.new[-1]

    site.pool._start_new = start_new
    with pytest.raises(WeightSyncError, match="its log-probs of 3 canary tokens are others"):
        stream(site.pool, PROMPTS)
    assert "generate" not in site.new[0].calls


def test_a_new_engine_that_loads_other_weights_samples_nothing() -> None:
    class Deaf(Mortal):
        def answer(self, method: str, *arguments: Any) -> Any:
            held = self.holds
            answer = super().answer(method, *arguments)
            self.holds = held
            return held if method == "load_weights" else answer

    site = Site("generate")
    site.pool.load_weights(UPDATE)
    site.pool._start_new = lambda index: site.new.append(Deaf("new")) or site.new[-1]
    with pytest.raises(WeightSyncError, match="holds weights noise and not aaaa"):
        stream(site.pool, PROMPTS)


def test_one_whose_weights_nobody_has_any_more_is_not_replaced() -> None:
    """In evaluation, whose file of weights is gone once all have loaded it: the stage is begun
    again, as it was when no engine could be replaced."""
    site = Site("generate")
    site.pool.load_weights(UPDATE)
    site.pool.cannot_load_again()
    with pytest.raises(WorkerDied, match="died during generate"):
        stream(site.pool, PROMPTS)
    assert not site.new
    site.pool.load_weights(UPDATE)
    assert stream(site.pool, PROMPTS) == EXPECTED


def test_an_engine_of_before_the_first_load_is_given_no_weights() -> None:
    site = Site("stamp")
    assert site.pool._start_each("begin")()
    site.first.stopped = True
    site.pool.begin()
    assert [new.calls for new in site.new] == [["begin"]]

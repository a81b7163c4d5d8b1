"""Several engines sample as one, and none with other weights than the rest."""

from collections.abc import Sequence
from functools import partial
from time import sleep
from typing import Any

import numpy as np
import pytest

from rlcore.cluster.in_process import InProcessWorker
from rlcore.cluster.worker_object import Shell
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Generation, RolloutEngine, Sampling, TurnRequest
from rlcore.models.weight_digest import WeightStamp, WeightSyncError, WeightUpdate
from schemas.outcomes import FinishReason

STAMP = WeightStamp(3, "a" * 64)


class Echo(RolloutEngine):
    """Answers each prompt with its own ids, its seed and its budget."""

    def __init__(self, stamp: WeightStamp = STAMP, refusal: str = "") -> None:
        self._stamp, self._refusal = stamp, refusal
        self.calls: list[str | list[str]] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def generate(self, requests: list[TurnRequest], sampling: Sampling) -> list[Generation]:
        del sampling
        self.calls.append([request.key for request in requests])
        rows = [[*each.token_ids, each.seed, each.max_new_tokens] for each in requests]
        return [Generation(r, [0.0] * len(r), FinishReason.STOP, self._stamp) for r in rows]

    def load_weights(self, update: WeightUpdate) -> WeightStamp:
        del update
        if self._refusal:
            raise WeightSyncError(self._refusal)
        return self._stamp

    def stamp(self) -> WeightStamp:
        return self._stamp

    def probe(self, token_ids: list[list[int]]) -> list[list[float]]:
        return [[float(len(ids))] for ids in token_ids]

    def close(self) -> None:
        """Nothing is held."""


def pool_of(*engines: Any) -> EnginePool:
    workers = [InProcessWorker.of(f"engine {i}", engine) for i, engine in enumerate(engines)]
    return EnginePool(workers, timeout_s=5, sync_timeout_s=5)


class Remote(InProcessWorker):
    """A worker whose calls end when they are waited for; ``told``: starts and waits, in order."""

    def __init__(self, name: str, shell: Shell) -> None:
        super().__init__(name, shell)
        self.told: list[str] = []

    def start(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.told.append(f"{method} is started")
        call, told = partial(super().start, method, *args, **kwargs), self.told

        class Call:
            def result(self, timeout_s: float) -> Any:
                told.append(f"{method} is waited for")
                return call().result(timeout_s)

        return Call()


def stream(
    pool: EnginePool, prompts: Sequence[Sequence[int]], schedule: str = "stream"
) -> dict[int, list[int]]:
    seeds = [100 + i for i in range(len(prompts))]
    sampling, sample = Sampling(max_new_tokens=9), getattr(pool, schedule)
    return {index: g.token_ids for index, g in sample(prompts, seeds, sampling)}


@pytest.mark.parametrize("num_prompts", [0, 1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("num_engines", [1, 2, 3])
@pytest.mark.parametrize("schedule", ["stream", "pulled"])
def test_each_prompt_is_answered_once_with_its_own_seed(
    num_engines: int, num_prompts: int, schedule: str
) -> None:
    """An answer under another prompt's index is rewarded by another ground truth."""
    prompts = [[i] for i in range(num_prompts)]
    found = stream(pool_of(*(Echo() for _ in range(num_engines))), prompts, schedule)
    assert found == {i: [i, 100 + i, 9] for i in range(num_prompts)}


def test_every_engine_begins_and_those_without_a_prompt_sample_nothing() -> None:
    engines = [Echo() for _ in range(3)]
    stream(pool_of(*engines), [[1], [2]])
    assert [engine.calls for engine in engines] == [["begin", ["0"]], ["begin", ["1"]], ["begin"]]


def test_a_turn_leaves_each_share_with_its_engine() -> None:
    """An engine has the prefix of its own episodes only; and a batch decides the last bits."""
    engines = [Echo() for _ in range(3)]
    pool = pool_of(*engines)
    counted: list[Any] = list(np.arange(3))
    request = {k: TurnRequest(k, [n], n, n + 1) for k, n in zip("abc", counted, strict=True)}
    shares = [[request["b"], request["a"]], [], [request["c"]]]
    found = {key: g.token_ids for key, g in pool.turn(shares, Sampling())}
    assert found == {"b": [1, 1, 2], "a": [0, 0, 1], "c": [2, 2, 3]}
    assert {type(number) for row in found.values() for number in row} == {int}
    assert [engine.calls for engine in engines] == [[["b", "a"]], [], [["c"]]]
    assert len(pool) == 3


def test_each_engine_is_busy_from_its_share_to_its_answer() -> None:
    class Slow(Echo):
        def generate(self, requests: list[TurnRequest], sampling: Sampling) -> list[Generation]:
            sleep(0.05)
            return super().generate(requests, sampling)

    pool = pool_of(Slow(), Slow(), Echo())
    pool.load_weights(WeightUpdate(STAMP, "w.safetensors", {}))
    loads = pool.taken_spans()
    assert [(span.lane, span.what) for span in loads] == [(f"engine {n}", "sync") for n in range(3)]
    stream(pool, [[1], [2]])
    first, second = sorted(pool.taken_spans(), key=lambda span: span.lane)
    assert (first.lane, first.what, second.lane) == ("engine 0", "gen", "engine 1")
    assert all(span.ended_s - span.began_s >= 0.05 for span in (first, second))
    assert first.began_s >= loads[-1].ended_s
    assert pool.taken_spans() == []


def test_an_engine_that_holds_other_weights_is_named() -> None:
    """Half of the samples would come from another policy, with nothing to show it."""
    pool = pool_of(Echo(), Echo(WeightStamp(2, "b" * 64)))
    update = WeightUpdate(STAMP, "w.safetensors", {})
    for ask in (pool.stamp, lambda: pool.load_weights(update)):
        with pytest.raises(WeightSyncError, match=r"'engine 1' holds .* version 2 .*version 3"):
            ask()


def test_a_refusal_is_told_with_the_engines_name() -> None:
    pool = pool_of(Echo(), Echo(refusal="1 of 2 tensors never reached the loader"))
    with pytest.raises(WeightSyncError, match=r"rollout engine 'engine 1': 1 of 2 tensors never"):
        pool.load_weights(WeightUpdate(STAMP, "w.safetensors", {}))


def test_a_probe_tells_the_engines_apart() -> None:
    assert pool_of(Echo(), Echo()).start_probe([[1, 2], [3]])() == {
        "engine 0": [[2.0], [1.0]],
        "engine 1": [[2.0], [1.0]],
    }


def test_calls_that_follow_each_other_are_not_waited_for_one_by_one() -> None:
    worker = Remote.of("engine 0", Echo())
    pool = EnginePool([worker], timeout_s=5, sync_timeout_s=5)
    assert stream(pool, [[7]]) == {0: [7, 100, 9]}
    loaded = pool.start_load(WeightUpdate(STAMP, "w.safetensors", {}))
    probed = pool.start_probe([[1, 2]])
    assert (loaded(), probed()) == (STAMP, {"engine 0": [[2.0]]})
    assert isinstance(worker, Remote)
    pairs = [("begin", "generate"), ("load_weights", "probe")]
    assert worker.told == [
        f"{method} is {what}"
        for pair in pairs
        for what in ("started", "waited for")
        for method in pair
    ]


def test_a_refused_load_is_the_error_where_a_probe_follows_it() -> None:
    worker = Remote.of("engine 0", Echo(refusal="1 of 2 tensors never reached the loader"))
    pool = EnginePool([worker], timeout_s=5, sync_timeout_s=5)
    loaded = pool.start_load(WeightUpdate(STAMP, "w.safetensors", {}))
    pool.start_probe([[1, 2]])
    with pytest.raises(WeightSyncError, match="'engine 0': 1 of 2 tensors never"):
        loaded()

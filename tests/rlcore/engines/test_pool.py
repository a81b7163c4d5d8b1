"""Several engines sample as one, and none with other weights than the rest."""

from collections.abc import Sequence
from typing import Any

import pytest

from rlcore.cluster.in_process import InProcessWorker
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Generation, Sampling
from rlcore.weights.stamp import WeightStamp, WeightSyncError, WeightUpdate
from schemas.outcomes import FinishReason

STAMP = WeightStamp(3, "a" * 64)


class Echo:
    """Answers each prompt with its own ids and its seed."""

    def __init__(self, stamp: WeightStamp = STAMP, refusal: str = "") -> None:
        self._stamp, self._refusal = stamp, refusal
        self.calls: list[int] = []

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling
    ) -> list[Generation]:
        del sampling
        self.calls.append(len(prompts))
        return [
            Generation([*ids, seed], [0.0] * (len(ids) + 1), FinishReason.STOP, self._stamp)
            for ids, seed in zip(prompts, seeds, strict=True)
        ]

    def load_weights(self, update: WeightUpdate) -> WeightStamp:
        del update
        if self._refusal:
            raise WeightSyncError(self._refusal)
        return self._stamp

    def stamp(self) -> WeightStamp:
        return self._stamp

    def probe(self, token_ids: list[list[int]]) -> list[list[float]]:
        return [[float(len(ids))] for ids in token_ids]


def pool_of(*engines: Any) -> EnginePool:
    workers = [InProcessWorker.of(f"engine {i}", engine) for i, engine in enumerate(engines)]
    return EnginePool(workers, timeout_s=5, sync_timeout_s=5)


def stream(pool: EnginePool, prompts: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    seeds = [100 + i for i in range(len(prompts))]
    return {index: g.token_ids for index, g in pool.stream(prompts, seeds, Sampling())}


@pytest.mark.parametrize("num_prompts", [0, 1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("num_engines", [1, 2, 3])
def test_each_prompt_is_answered_once_with_its_own_seed(num_engines: int, num_prompts: int) -> None:
    """An answer under another prompt's index is rewarded by another ground truth."""
    prompts = [[i] for i in range(num_prompts)]
    found = stream(pool_of(*(Echo() for _ in range(num_engines))), prompts)
    assert found == {i: [i, 100 + i] for i in range(num_prompts)}


def test_engines_without_a_prompt_are_not_called() -> None:
    engines = [Echo() for _ in range(3)]
    stream(pool_of(*engines), [[1], [2]])
    assert [engine.calls for engine in engines] == [[1], [1], []]


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
    assert pool_of(Echo(), Echo()).probe([[1, 2], [3]]) == {
        "engine 0": [[2.0], [1.0]],
        "engine 1": [[2.0], [1.0]],
    }

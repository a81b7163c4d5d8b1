"""A vLLM engine whose every step takes a multiple of its time; a module of its own, as the engine's
process imports it."""

from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

from rlcore.engines.types import EngineSpec
from rlcore.engines.vllm_engine import VllmEngine


class SlowedEngine(VllmEngine):
    """``times``: how long a step takes, in steps of vLLM."""

    def __init__(self, spec: EngineSpec, times: float) -> None:
        super().__init__(spec)
        engine = self._llm.llm_engine
        engine.step = slowed(engine.step, times)


def slowed(step: Callable[[], Any], times: float) -> Callable[[], Any]:
    def longer() -> Any:
        begun = perf_counter()
        outputs = step()
        sleep((times - 1) * (perf_counter() - begun))
        return outputs

    return longer

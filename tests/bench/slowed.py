"""A vLLM engine whose every step takes a multiple of its time; a module of its own, as the engine's
process imports it."""

from rlcore.engines.types import EngineSpec
from rlcore.engines.vllm_engine import VllmEngine
from tests.bench.slowed_one import slowed


class SlowedEngine(VllmEngine):
    """``times``: how long a step takes, in steps of vLLM."""

    def __init__(self, spec: EngineSpec, times: float) -> None:
        super().__init__(spec)
        engine = self._llm.llm_engine
        engine.step = slowed(engine.step, times)

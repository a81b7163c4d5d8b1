"""The registered rollout engines.

To add one: its entry here, its file in this package, and its name in
``schemas.hardware.RolloutHardware.engine``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rlcore.engines.types import EngineSpec


@dataclass(frozen=True, slots=True)
class EngineKind:
    """``target``: "package.module:Class" of a ``RolloutEngine``, loaded in the worker only.

    ``environment``: variables that its process must be started with.
    """

    target: str
    environment: Callable[[EngineSpec], dict[str, str]]

    @property
    def module(self) -> str:
        """Return the dotted name of the module that holds the class."""
        return self.target.partition(":")[0]


def _vllm_environment(spec: EngineSpec) -> dict[str, str]:
    from rlcore.engines.vllm_engine import engine_env

    return engine_env(spec)


def _transformers_environment(spec: EngineSpec) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(spec.threads)}


ENGINES = {
    "vllm": EngineKind("rlcore.engines.vllm_engine:VllmEngine", _vllm_environment),
    "transformers": EngineKind(
        "rlcore.engines.transformers_engine:TransformersEngine", _transformers_environment
    ),
}

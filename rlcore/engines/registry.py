"""The rollout engines by name: those registered here, and the user's own.

To register one: its entry here, its file in this package, and its name in
``schemas.hardware.ENGINES``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from rlcore.cluster.surroundings import SPINNING
from rlcore.engines.types import EngineSpec


@dataclass(frozen=True, slots=True)
class EngineKind:
    """``target``: "package.module:Class" of a ``RolloutEngine``, loaded in the worker only.

    ``environment``: variables that its process must be started with. ``arguments``: what its
    constructor takes behind the spec.
    """

    target: str
    environment: Callable[[EngineSpec], dict[str, str]]
    arguments: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """Return the dotted name of the module that holds the class."""
        return self.target.partition(":")[0]


def _vllm_environment(spec: EngineSpec) -> dict[str, str]:
    from rlcore.engines.vllm_engine import engine_env

    return engine_env(spec)


def _threads(spec: EngineSpec) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(spec.threads), **SPINNING}


ENGINES = {
    "vllm": EngineKind("rlcore.engines.vllm_engine:VllmEngine", _vllm_environment),
    "transformers": EngineKind("rlcore.engines.transformers_engine:TransformersEngine", _threads),
}
OWN = EngineKind("rlcore.engines.own_engine:OwnEngine", _threads)


def engine_kind(name: str) -> EngineKind:
    """Return the engine that ``hardware.rollout.engine`` names: of ``ENGINES``, or the user's
    class."""
    return ENGINES[name] if name in ENGINES else replace(OWN, arguments=(name,))

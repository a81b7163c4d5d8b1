"""The rollout engines by name: those registered here, the user's own, and which one
``hardware.rollout.engine: auto`` means.

It looks at no clock and at nothing that is installed: engines draw by different random numbers, and
a rerun must draw the same.

To register one: its entry here, its file in this package, and its name in
``schemas.hardware.ENGINES``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec

from rlcore.cluster.host_settings import SPINNING
from rlcore.engines.types import EngineSpec
from schemas.errors import UserError
from schemas.hardware import AUTO, SMALL_PARAMETERS, HardwareSection

WHERE = "hardware.rollout.engine"


@dataclass(frozen=True, slots=True)
class Choice:
    """``engine``: a name that ``engine_kind`` takes, and ``why`` it samples."""

    engine: str
    why: str


def choose(hardware: HardwareSection, device: str, parameters: int) -> Choice:
    """Return the engine that samples from a model of ``parameters`` on ``device``."""
    named = hardware.rollout.engine
    if named != AUTO:
        return Choice(named, f"{WHERE} names it")
    if hardware.cluster == "in_process":
        return Choice("transformers", "auto: vLLM cannot share a process with the learner")
    if device == "cuda":
        return Choice("vllm", "auto: the device is cuda")
    if hardware.rollout.tensor_parallel > 1:
        return Choice("vllm", "auto: hardware.rollout.tensor_parallel divides the weights")
    border = f"{SMALL_PARAMETERS:,}, on cpu"
    if hardware.takes_vllm_on_cpu(parameters):
        return Choice("vllm", f"auto: {parameters:,} parameters are not fewer than {border}")
    return Choice("transformers", f"auto: {parameters:,} parameters are fewer than {border}")


def resumed_choice(hardware: HardwareSection, choice: Choice, recorded: str | None) -> Choice:
    """Return the engine with which what ``recorded`` has begun continues: that one, unless the
    recipe names its own.

    Raises UserError where that is vLLM and everything is to share a process.
    """
    if hardware.rollout.engine != AUTO or recorded not in ENGINES or recorded == choice.engine:
        return choice
    if hardware.cluster == "in_process" and recorded == "vllm":
        raise UserError(
            f"{WHERE} = '{AUTO}': this run began with '{recorded}', which cannot share a process"
            f" with the learner; set hardware.cluster to 'ray', or {WHERE} to 'transformers' to"
            " continue with other random numbers"
        )
    return Choice(recorded, "auto: what this run has sampled so far is by it")


def check_installed(hardware: HardwareSection, choice: Choice) -> None:
    """Raise UserError where ``auto`` took vLLM and it is not installed here; of the machines of a
    cluster that is joined nothing is known."""
    if hardware.rollout.engine != AUTO or hardware.ray_address is not None:
        return
    if choice.engine == "vllm" and find_spec("vllm") is None:
        raise UserError(
            f"{WHERE} = '{AUTO}' takes vllm ({choice.why.removeprefix('auto: ')}) and vllm is not"
            f" installed; install it with 'make env', or set {WHERE} to 'transformers', which"
            " draws other random numbers"
        )


@dataclass(frozen=True, slots=True)
class EngineKind:
    """``target``: "package.module:Class" of a ``RolloutEngine``, loaded in the worker only.

    ``environment``: variables that its process must be started with. ``arguments``: what its
    constructor takes behind the spec.
    """

    target: str
    environment: Callable[[EngineSpec], dict[str, str]]
    arguments: tuple[str, ...] = ()


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
    """Return the engine that ``hardware.rollout.engine`` names: one of ours or the user's class."""
    return ENGINES[name] if name in ENGINES else replace(OWN, arguments=(name,))

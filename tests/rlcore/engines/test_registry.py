"""What is named by text is there: engines, and what their processes import ahead."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlcore.engines.registry import ENGINES, OWN, EngineKind
from rlcore.engines.types import EngineSpec
from rlcore.workers.workers import LEARNER


@pytest.mark.parametrize(
    "target", [LEARNER, OWN.target, *(engine.target for engine in ENGINES.values())]
)
def test_what_a_host_imports_ahead_exists(target: str) -> None:
    """A module that a new version of a library has moved would be imported late, in silence."""
    module, _, name = target.partition(":")
    for imported in getattr(getattr(import_module(module), name), "IMPORTS", ()):
        package, _, last = imported.rpartition(".")
        root = find_spec(imported.partition(".")[0])
        assert root is not None
        assert root.origin is not None
        below = Path(root.origin).parent.joinpath(*package.split(".")[1:])
        assert (below / f"{last}.py").is_file(), imported


@pytest.mark.parametrize("kind", ENGINES.values(), ids=list(ENGINES))
def test_a_process_of_an_engine_starts_with_the_threads_of_its_spec(kind: EngineKind) -> None:
    """OpenMP reads its thread count once; set later it does nothing."""
    environment = kind.environment(EngineSpec(model_dir="m", threads=3))
    assert environment["OMP_NUM_THREADS"] == "3"
    assert kind.target == f"{kind.module}:{kind.target.rpartition(':')[2]}"

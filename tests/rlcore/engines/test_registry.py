"""The processes of engines have what a library reads once."""

import pytest

from rlcore.engines.registry import ENGINES, EngineKind
from rlcore.engines.types import EngineSpec


@pytest.mark.parametrize("kind", ENGINES.values(), ids=list(ENGINES))
def test_a_process_of_an_engine_starts_with_the_threads_of_its_spec(kind: EngineKind) -> None:
    """OpenMP reads its thread count once; set later it does nothing."""
    environment = kind.environment(EngineSpec(model_dir="m", threads=3))
    assert environment["OMP_NUM_THREADS"] == "3"

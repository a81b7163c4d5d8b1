"""The engine for machines without vLLM."""

import os
import subprocess
import sys
from pathlib import Path

from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec
from rlcore.models.weight_files import read_checkpoint

ROOT = Path(__file__).parents[3]


def test_the_fallback_needs_no_vllm_ray_or_prefect() -> None:
    """It exists for machines where those are not installed."""
    code = (
        "import sys, rlcore.engines.transformers_engine, rlcore.engines.vllm_engine;"
        "print(sorted({'vllm', 'ray', 'prefect', 'deepspeed'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.stdout.strip().splitlines()[-1:] == ["[]"], run.stdout + run.stderr[-500:]


def test_a_new_engine_holds_none_of_its_directorys_weights(model_dirs: dict[bool, Path]) -> None:
    engine = TransformersEngine(EngineSpec(model_dir=str(model_dirs[False])))
    for name, tensor in engine._model.named_parameters():
        assert (tensor != read_checkpoint(model_dirs[False])[name]).float().mean() > 0.99, name

"""What a new environment compiles in the background is what its first run needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_bytecode_of_what_workers_import_is_cached(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "rlcore.workers.imports"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    compiled = {f"{path.parent.name}/{path.name.partition('.')[0]}" for path in tmp_path.rglob("*")}
    for module in ("learner/learner", "auto/modeling_auto", "runtime/engine", "ray/actor"):
        assert module in compiled, module

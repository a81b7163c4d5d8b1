"""A run that was killed continues with other ranks, and whoever reads of it is told."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlcore.store.artifacts import ArtifactStore
from tests.flows.small_run import environment, run_small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TWO: dict[str, Any] = {
    "hardware.device": "cpu",
    "hardware.rollout.engine": "transformers",
    "hardware.rollout.engines": 1,
    "hardware.learner.threads": 1,
    "hardware.learner.ranks": 2,
    "hardware.learner.zero_stage": 2,
    "rl.iterations": 3,
}
ONE = {**TWO, "hardware.learner.ranks": 1, "hardware.learner.zero_stage": "auto"}
CHANGE = "1 rank (ZeRO 0) instead of 2 ranks (ZeRO 2)"


def command(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_ranks_become_one_in_mid_run(prefect_server: str, tmp_path: Path) -> None:
    run = run_small(tmp_path, TWO, kill_at="advantage")
    assert run.returncode == -signal.SIGKILL, run.stdout[-4000:]
    store = ArtifactStore(tmp_path / "runs" / "store")
    (begun,) = {key.rpartition("/")[0] for key in store.keys("iterations")}

    recipe = tmp_path / "runs" / "latest" / "recipe.yaml"
    said = command(
        tmp_path,
        *("status", str(recipe), "-o", "hardware.learner.ranks=1"),
        *("-o", "hardware.learner.zero_stage=auto"),
    )
    assert f"continues at 2 (with {CHANGE})" in said

    run = run_small(tmp_path, ONE)
    assert run.returncode == 0, run.stdout[-4000:]
    assert "hardware.learner has 1 rank (ZeRO 0), the checkpoint is of 2 ranks (ZeRO 2)" in (
        run.stdout
    )
    assert {key.rpartition("/")[0] for key in store.keys("iterations")} == {begun}
    (changed,) = [
        restart
        for restart in json.loads((recipe.parent / "summary.json").read_text())["restarts"]
        if restart["stage"] == "rl"
    ]
    assert (changed["step"], changed["remedy"]) == (1, "its training state resharded")
    assert f"hardware.learner: {CHANGE} after step 1" in command(tmp_path, "lineage", "latest")
    pages = (tmp_path / "runs" / "reports").rglob("index.html")
    assert any("its training state resharded" in page.read_text() for page in pages)
    first, third = (store.peek("iterations", f"{begun}/{number:06d}") for number in (1, 3))
    assert first is not None
    assert third is not None
    assert "resharded" not in first.metadata
    assert [one["step"] for one in third.metadata["resharded"]] == [1]

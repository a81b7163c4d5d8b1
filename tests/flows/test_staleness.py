"""Sampling ahead through the flow: kill -9 at any point, rerun, and the weights are those of an
uninterrupted run."""

import signal
from pathlib import Path

import pytest

from tests.flows.small_run import INLINE, artifact_digests, model_digests, run_small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
POINTS = ("rollout", "reward", "advantage", "checkpoint", "write", "update", "sync", "before-sync")
AHEAD = {**INLINE, "rl.algorithm.importance_correction.level": "token", "rl.iterations": 5}


@pytest.mark.parametrize("staleness", [1, 2])
def test_a_run_killed_at_each_point_ends_as_an_undisturbed_one(
    prefect_server: str, tmp_path: Path, staleness: int
) -> None:
    recipe = {**AHEAD, "rl.rollout.max_staleness": staleness}
    whole = run_small(tmp_path / "whole", recipe)
    assert whole.returncode == 0, whole.stdout[-4000:]
    for point in POINTS:
        run = run_small(tmp_path / "killed", recipe, kill_at=point)
        assert run.returncode == -signal.SIGKILL, f"{point}: {run.stdout[-4000:]}"
    run = run_small(tmp_path / "killed", recipe)
    assert run.returncode == 0, run.stdout[-4000:]
    for kind in ("policy", "export"):
        assert model_digests(tmp_path / "killed", kind) == model_digests(tmp_path / "whole", kind)
    for kind in ("rollouts", "advantages"):
        killed, undisturbed = (
            artifact_digests(tmp_path / folder, kind) for folder in ("killed", "whole")
        )
        assert killed == undisturbed, kind


def test_two_engines_of_vllm_on_ray_sample_the_same_whatever_takes_how_long(
    prefect_server: str, tmp_path: Path
) -> None:
    """Rows share batches and engines by their place. Killed between two syncs, a run has engines
    that come to policies in other company; and what it repeats waits for nothing."""
    recipe = {
        "hardware.rollout.engine": "vllm",
        "hardware.rollout.engines": 2,
        "rl.algorithm.importance_correction.level": "token",
        "rl.rollout.max_staleness": 2,
        "rl.iterations": 5,
    }
    whole = run_small(tmp_path / "whole", recipe, fresh=True)
    assert whole.returncode == 0, whole.stdout[-4000:]
    for point in ("rollout", "update"):
        run = run_small(tmp_path / "killed", recipe, kill_at=point, fresh=True)
        assert run.returncode == -signal.SIGKILL, f"{point}: {run.stdout[-4000:]}"
    run = run_small(tmp_path / "killed", recipe, fresh=True)
    assert run.returncode == 0, run.stdout[-4000:]
    for find, kind in ((model_digests, "policy"), (artifact_digests, "rollouts")):
        assert find(tmp_path / "killed", kind) == find(tmp_path / "whole", kind)

"""A rollout engine that is killed or stopped is replaced within the iteration, on real Ray."""

import json
from pathlib import Path

import psutil
import pytest

from tests.flows.crash_points import LOST, PROCESSES
from tests.flows.small_run import artifact_digests, model_digests, run_small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TWO = {"hardware.rollout.engines": 2, "hardware.rollout.engine": "transformers"}


@pytest.fixture(scope="module")
def undisturbed(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("undisturbed")
    run = run_small(directory, TWO, fresh=True)
    assert run.returncode == 0, run.stdout[-4000:]
    return directory


@pytest.mark.parametrize("point", [point for point in LOST if point != "lose-evaluation"])
def test_the_run_continues_with_the_same_rows(
    undisturbed: Path, tmp_path: Path, point: str
) -> None:
    """Without a restart of its stage, and to the same weights."""
    run = run_small(tmp_path, TWO, kill_at=point, fresh=True)
    assert run.returncode == 0, run.stdout[-4000:]
    assert "rollout engine 'rollout-engine-0' is lost and replaced in" in run.stdout
    assert "new workers" not in run.stdout
    for find, kind in ((model_digests, "policy"), (artifact_digests, "rollouts")):
        assert find(tmp_path, kind) == find(undisturbed, kind)
    (lost,) = json.loads((tmp_path / PROCESSES).read_text())
    assert not psutil.pid_exists(lost)


def test_in_evaluation_the_stage_begins_again_with_new_workers(
    undisturbed: Path, tmp_path: Path
) -> None:
    """The file of the weights is gone by then, so that no other engine can load them."""
    run = run_small(tmp_path, TWO, kill_at="lose-evaluation", fresh=True)
    assert run.returncode == 0, run.stdout[-4000:]
    assert "new workers" in run.stdout
    assert "is lost and replaced" not in run.stdout
    for kind in ("policy", "export"):
        assert model_digests(tmp_path, kind) == model_digests(undisturbed, kind)

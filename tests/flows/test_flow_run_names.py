"""A run has one name: in Prefect, in its folder and on the command line."""

from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from flows.flow_run_names import evolve_name, pipeline_name, retrain_name
from rlcore.results.folders import run_directory

pytestmark = pytest.mark.timeout(60)


@flow(flow_run_name=pipeline_name)
def pipeline(recipe: str = "quickstart") -> tuple[str, str]:
    """Return the name of the run's folder, and Prefect's of the run."""
    with get_client(sync_client=True) as client:
        return run_directory(recipe, flow_run.id).name, client.read_flow_run(flow_run.id).name


@flow(flow_run_name=retrain_name)
def retraining(recipe: str) -> str:
    """Return Prefect's name of the run."""
    with get_client(sync_client=True) as client:
        return client.read_flow_run(flow_run.id).name


@flow(flow_run_name=evolve_name)
def evolving(recipe: str) -> str:
    """Return Prefect's name of the run."""
    with get_client(sync_client=True) as client:
        return client.read_flow_run(flow_run.id).name


def test_a_run_is_called_after_its_folder_and_never_by_a_path(
    prefect_server: str, tmp_path: Path
) -> None:
    del prefect_server
    for recipe in ("quickstart", str(tmp_path / "mine.yaml")):
        folder, name = pipeline(recipe)
        assert name == folder
        assert name.startswith(f"{Path(recipe).stem}-")


def test_retrainings_of_a_recipe_are_counted(prefect_server: str, tmp_path: Path) -> None:
    del prefect_server
    mine = str(tmp_path / "counted.yaml")
    assert [retraining(mine) for _ in range(2)] == ["counted-retrain-1", "counted-retrain-2"]
    assert retraining("other") == "other-retrain-1"
    assert evolving(mine).startswith("counted-evolve-")

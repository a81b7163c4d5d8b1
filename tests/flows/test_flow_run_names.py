"""A run has one name: in Prefect, in its folder and on the command line."""

from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from flows.flow_run_names import flow_name, pipeline_name
from rlcore.results.folders import run_directory

pytestmark = pytest.mark.timeout(60)


@flow(flow_run_name=pipeline_name)
def pipeline(recipe: str = "quickstart") -> tuple[str, str]:
    """Return the name of the run's folder, and Prefect's of the run."""
    with get_client(sync_client=True) as client:
        return run_directory(recipe, flow_run.id).name, client.read_flow_run(flow_run.id).name


@flow(name="evolve", flow_run_name=flow_name)
def evolving(recipe: str) -> tuple[str, str]:
    """Return Prefect's id and name of the run."""
    with get_client(sync_client=True) as client:
        return str(flow_run.id), client.read_flow_run(flow_run.id).name


def test_a_run_is_called_after_its_folder_and_never_by_a_path(
    prefect_server: str, tmp_path: Path
) -> None:
    del prefect_server
    for recipe in ("quickstart", str(tmp_path / "mine.yaml")):
        folder, name = pipeline(recipe)
        assert name == folder
        assert name.startswith(f"{Path(recipe).stem}-")


def test_a_run_of_another_flow_is_called_after_recipe_and_flow(
    prefect_server: str, tmp_path: Path
) -> None:
    del prefect_server
    digits, name = evolving(str(tmp_path / "mine.yaml"))
    assert name == f"mine-evolve-{digits[:8]}"

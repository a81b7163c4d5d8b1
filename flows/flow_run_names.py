"""What runs are called in Prefect: as on the command line, which calls them after their folders."""

from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.client.schemas.sorting import FlowRunSort
from prefect.runtime import flow_run

from rlcore.results.folders import flow_run_digits, run_directory


def pipeline_name() -> str:
    """Return the name of the folder of the run that begins, e.g. quickstart-29e52650."""
    return run_directory(str(flow_run.parameters["recipe"]), str(flow_run.id)).name


def retrain_name() -> str:
    """Return e.g. yesno-retrain-3: the third retraining of the recipe that this server has seen."""
    stem = f"{_recipe()}-retrain-"
    with get_client(sync_client=True) as client:
        before = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(name=FlowRunFilterName(like_=stem)),
            sort=FlowRunSort.START_TIME_DESC,
        )
    digits = (flow_run_digits(run.name) for run in before if run.name.startswith(stem))
    return f"{stem}{max((int(n) for n in digits if n.isdecimal()), default=0) + 1}"


def evolve_name() -> str:
    """Return e.g. yesno-evolve-29e52650."""
    return f"{_recipe()}-evolve-{str(flow_run.id)[:8]}"


def _recipe() -> str:
    return Path(str(flow_run.parameters["recipe"])).stem

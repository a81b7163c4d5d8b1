"""What runs are called in Prefect: as on the command line, which calls them after their folders."""

from pathlib import Path

from prefect.runtime import flow_run

from rlcore.results.folders import run_directory


def pipeline_name() -> str:
    """Return the name of the folder of the run that begins, e.g. quickstart-29e52650."""
    return run_directory(str(flow_run.parameters["recipe"]), str(flow_run.id)).name


def flow_name() -> str:
    """Return recipe, flow and digits of the run that begins, e.g. yesno-evolve-29e52650."""
    recipe = Path(str(flow_run.parameters["recipe"])).stem
    return f"{recipe}-{flow_run.flow_name}-{str(flow_run.id)[:8]}"

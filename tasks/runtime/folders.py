"""Where a run keeps its files. Light: the command line looks at the folders of runs, too."""

from pathlib import Path

RUNS = Path("runs")
ID_DIGITS = 8


def run_directory(recipe_name: str, flow_run_id: str) -> Path:
    """Return the folder of a flow run: ``runs/<recipe>-<first 8 digits of the run's id>``."""
    return RUNS / f"{Path(recipe_name).stem}-{flow_run_id[:ID_DIGITS]}"


def flow_run_digits(name: str) -> str:
    """Return the digits of the flow run's id that end the name of its folder."""
    return name.rpartition("-")[2]

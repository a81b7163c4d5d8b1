"""The page of a run whose process is gone: completed from its records, with why it ended.

A hook of the flow, ``on_crashed`` and ``on_cancellation``: it runs in the worker's process, so also
after a kill -9 of the flow. Idempotent: Prefect may call it twice.
"""

from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import StateType
from prefect.logging import get_logger

from rlcore.report.facts import Ending
from rlcore.results.folders import RECIPE, run_directory
from rlcore.results.run import Run
from tasks.run_page.board import Board
from tasks.run_page.view import View

CANCELLED = (StateType.CANCELLING, StateType.CANCELLED)


def show_end(flow: Any, flow_run: Any, state: Any) -> None:
    """Show on the page of ``flow_run`` how it ended. A page that cannot be published is logged: the
    hooks after this one matter more."""
    folder = run_directory(flow_run.parameters.get("recipe", flow_run.name), str(flow_run.id))
    if not (folder / RECIPE).is_file():
        return  # it ended before it had begun
    try:
        recipe = Run.open(folder.name, folder.parent).recipe
        View(folder, recipe, Board(flow_run.id, recipe.name)).publish(_ending(flow_run, state))
    except Exception as error:  # noqa: BLE001  see above
        get_logger(__name__).warning(
            f"the page of {folder.name} does not say how the run ended"
            f" ({type(error).__name__}: {error})"
        )


def show_ends_below(flow: Any, flow_run: Any, state: Any) -> None:
    """Do so for the runs of the pipeline that ``flow_run`` called."""
    parent = FlowRunFilterParentFlowRunId(any_=[flow_run.id])
    with get_client(sync_client=True) as client:
        children = client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=parent))
    for child in children:
        if child.state is None or not child.state.is_final():
            show_end(flow, child, state)


def _ending(flow_run: Any, state: Any) -> Ending:
    """Return how the run ended: a cancelled one calls its hooks as Crashed, too."""
    with get_client(sync_client=True) as client:
        now = client.read_flow_run(flow_run.id).state or state
    if now.type in CANCELLED:
        return Ending("cancelled", now.message or "")
    return Ending(state.name.lower(), state.message or "")

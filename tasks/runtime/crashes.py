"""Closes the runs and tasks of a dead flow run, so that none stays Running forever.

Used as hooks, ``@flow(on_crashed=[close_children], on_cancellation=[close_children])``: they run in
the worker's process, so also after a kill -9 of the flow. Idempotent: Prefect may call them twice.
"""

from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, TaskRunFilter
from prefect.client.schemas.objects import StateType
from prefect.states import Crashed

# Paused runs wait for a person and have no process.
OPEN_STATES = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
PAGE = 200


def in_states(states: list[StateType], **more: Any) -> FlowRunFilter:
    """Return the filter of flow runs in one of ``states``; ``more``: of its other fields."""
    return FlowRunFilter.model_validate({"state": {"type": {"any_": states}}, **more})


def close_children(flow: Any, flow_run: Any, state: Any) -> None:
    """Set the open child flow runs and task runs of ``flow_run`` to Crashed."""
    with get_client(sync_client=True) as client:
        _close_below(client, flow_run.id, f"the flow run above ended {state.name}")


def close_run(client: SyncPrefectClient, flow_run_id: UUID, message: str) -> None:
    """Set a flow run whose process is known to be gone to Crashed, with all that is below it."""
    client.set_flow_run_state(flow_run_id, Crashed(message=message), force=True)
    _close_below(client, flow_run_id, message)


def _close_below(client: SyncPrefectClient, flow_run_id: UUID, message: str) -> None:
    children = client.read_flow_runs(
        flow_run_filter=in_states(OPEN_STATES, parent_flow_run_id={"any_": [flow_run_id]})
    )
    for child in children:
        close_run(client, child.id, message)
    while True:
        task_runs = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])),
            task_run_filter=TaskRunFilter.model_validate(
                {"state": {"type": {"any_": OPEN_STATES}, "name": None}}
            ),
            limit=PAGE,
        )
        for task_run in task_runs:
            client.set_task_run_state(task_run.id, Crashed(message=message), force=True)
        if len(task_runs) < PAGE:
            return

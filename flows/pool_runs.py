"""Runs of the work pool: which are in progress, which process executes one, and an end to those
that nothing executes."""

import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelled

from rlcore.cluster.os_processes import is_alive
from tasks.runtime.crashes import OPEN_STATES, close_run

POOL = "rl-pipeline"
CATCH_UP = "catch-up"  # the tag of a run that makes up for a firing of a schedule


def worker_reported(since: float) -> bool:
    """Return whether a worker of the pool sent a heartbeat after ``since`` (epoch seconds)."""
    with get_client(sync_client=True) as client:
        workers = client.read_workers_for_work_pool(POOL)
    beats = [worker.last_heartbeat_time for worker in workers if worker.last_heartbeat_time]
    return any(beat.timestamp() >= since for beat in beats)


def close_orphans(message: str) -> int:
    """Close the pool's unfinished runs when there is no worker to do so; return how many.

    A run whose own process is alive ends without a worker.
    """
    with get_client(sync_client=True) as client:
        runs = [run for run in _runs_of_pool(client, OPEN_STATES) if executing(run) is None]
        for run in runs:
            close_run(client, run.id, message)
    return len(runs)


def executing(run: FlowRun) -> int | None:
    """Return the pid of the process on this machine that executes a run, if it is alive: one that a
    worker started, or the terminal's of a run without a deployment (``flows.cancelling``)."""
    if not (run.infrastructure_pid or "").isdecimal():
        return None
    try:
        process = psutil.Process(int(run.infrastructure_pid or ""))
        if run.deployment_id is not None:
            alive = "prefect.engine" in process.cmdline()
        else:  # a later process may have the number
            began = run.start_time.timestamp() if run.start_time else 0.0
            alive = is_alive(process) and process.create_time() <= began
    except psutil.NoSuchProcess:
        return None
    return process.pid if alive else None


def is_of_a_terminal(run: FlowRun) -> bool:
    """Return whether a run was started by a process of its own, as ``rl-pipeline run`` does, and
    no worker is needed for it."""
    return run.deployment_id is None and run.infrastructure_pid is not None


def has_active_runs() -> bool:
    """Return whether a run of the pool is in progress."""
    with get_client(sync_client=True) as client:
        return bool(_runs_of_pool(client, OPEN_STATES))


def cancel_waiting(message: str) -> int:
    """Cancel the pool's runs that have not started, except those of schedules; return how many.

    The schedule, while it is switched on, would create those again.
    """
    waiting = [StateType.SCHEDULED, StateType.PENDING]
    with get_client(sync_client=True) as client:
        runs = _runs_of_pool(client, waiting)
        asked_for = [run for run in runs if not run.auto_scheduled and CATCH_UP not in run.tags]
        for run in asked_for:
            client.set_flow_run_state(run.id, Cancelled(message=message), force=True)
    return len(asked_for)


def _runs_of_pool(client: SyncPrefectClient, states: list[StateType]) -> list[FlowRun]:
    return client.read_flow_runs(
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL])),
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states))
        ),
    )

"""Flow runs, as the server that this process calls knows them: those of the pipeline by their name,
and those of the work pool, with the process that executes one.

Where a command asks for a run, a server that does not answer ends in a UserError at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import UUID

import psutil
from httpx import TransportError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Cancelling

from rlcore.cluster.watch import is_alive
from rlcore.results.folders import ID_DIGITS, LATEST, run_directory
from schemas.errors import UserError, did_you_mean
from tasks.runtime.crashes import OPEN_STATES, close_run, in_states

FLOW_NAME = "rl-pipeline"
POOL = "rl-pipeline"
CATCH_UP = "catch-up"  # the tag of a run that makes up for a firing of a schedule
LISTED = 5
SHORTEST_ID = 4
PAGE = 200
BEGUN = [*OPEN_STATES, StateType.PAUSED]


def open_runs() -> list[FlowRun]:
    """Return the runs that have not ended, newest first, without those of later by a schedule."""
    runs = _read([*BEGUN, StateType.SCHEDULED])
    return [run for run in runs if run.state_type in BEGUN or not run.auto_scheduled]


def find_run(name: str) -> FlowRun:
    """Return the run that ``name`` means: its folder below ``runs/``, the beginning of its id (four
    digits or more), or "latest" for the one that was started last.

    Raises UserError with the runs there are when none or several match.
    """
    runs = _read()
    if name == LATEST:  # the server puts those for later first
        found = [run for run in runs if not _is_for_later(run)][:1]
    else:
        found = [run for run in runs if _is_called(run, name)]
    if len(found) == 1:
        return found[0]
    what = "several runs" if found else "no run"
    shown = ", ".join(f"{folder_of(run)} ({run.state_name})" for run in (found or runs)[:LISTED])
    near = did_you_mean(name, [folder_of(run) for run in runs])
    raise UserError(
        f"{what} of the Prefect server match '{name}'{near}; there are {shown or 'none'}"
    )


def folder_of(run: FlowRun) -> str:
    """Return the name of the run's folder below ``runs/``."""
    return run_directory(run.parameters.get("recipe", run.name), str(run.id)).name


def _is_for_later(run: FlowRun) -> bool:
    due = run.expected_start_time
    return run.state_type is StateType.SCHEDULED and due is not None and due > datetime.now(UTC)


def _is_called(run: FlowRun, name: str) -> bool:
    by_id = len(name) >= SHORTEST_ID and str(run.id).startswith(name)
    return by_id or name == folder_of(run)


def states(*, of_this_machine: bool) -> dict[str, str]:
    """Return the name of each run's state by the first eight digits of its id.

    Of a server whose runs are all ``of_this_machine``, a running one whose process is gone is
    crashed, before anything has told the server so: a machine that was switched off does not.
    """
    return {
        str(run.id)[:ID_DIGITS]: "crashed"
        if of_this_machine and was_lost(run)
        else (run.state_name or "unknown").lower()
        for run in _read()
    }


def was_lost(run: FlowRun) -> bool:
    """Return whether the process of a run of this machine has ended and the server has not heard
    of it."""
    # The pipeline of a retraining is in that one's process, and has no number.
    has_number = (run.infrastructure_pid or "").isdecimal()
    begun = run.state_type in (StateType.RUNNING, StateType.CANCELLING)
    return begun and has_number and executing(run) is None


def close(run_id: UUID) -> None:
    """Set a run that was lost to Crashed."""
    with _client() as client:
        close_run(client, run_id, "its process is gone")


def ending(digits: str) -> tuple[str, str] | None:
    """Return the state of the run whose id begins with ``digits``, and once it has ended without
    completing, why; None where the server does not know it."""
    run = next((run for run in _read() if str(run.id).startswith(digits)), None)
    if run is None or run.state is None:
        return None
    ended_early = run.state.is_final() and not run.state.is_completed()
    return (run.state_name or "unknown").lower(), (run.state.message or "") if ended_early else ""


def read(run_id: UUID) -> FlowRun:
    """Return the run as it is now."""
    with _client() as client:
        return client.read_flow_run(run_id)


def cancel(run_id: UUID) -> None:
    """Ask for the end of a run: of its worker, or of the process that it runs in
    (``flows.inline``). One that has not begun is cancelled at once."""
    with _client() as client:
        client.set_flow_run_state(run_id, Cancelling(message="asked for by rl-pipeline stop"))


def whole(run: FlowRun) -> FlowRun:
    """Return the run that ends when ``run`` is to end: the retraining that called it, whose process
    it is in, or itself."""
    if run.parent_task_run_id is None:
        return run
    with _client() as client:
        caller = client.read_task_run(run.parent_task_run_id).flow_run_id
        return run if caller is None else client.read_flow_run(caller)


def _read(states: list[StateType] | None = None) -> list[FlowRun]:
    found: list[FlowRun] = []
    with _client() as client:
        while True:
            page = client.read_flow_runs(
                flow_filter=FlowFilter.model_validate({"name": {"any_": [FLOW_NAME]}}),
                flow_run_filter=None if states is None else in_states(states),
                sort=FlowRunSort.START_TIME_DESC,
                limit=PAGE,
                offset=len(found),
            )
            found += page
            if len(page) < PAGE:
                return found


@contextmanager
def _client() -> Iterator[SyncPrefectClient]:
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True) as client,
        ):
            yield client
    except TransportError as error:
        raise UserError(
            f"the Prefect server at {PREFECT_API_URL.value()} does not answer ({error}); `make up`"
            " starts this project's, and PREFECT_API_URL names another one"
        ) from None


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
    worker started, or the terminal's of a run without a deployment (``flows.inline``)."""
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
    """Return whether a run was started by a separate process, as ``rl-pipeline run`` does, and
    no worker is needed for it."""
    return run.deployment_id is None and run.infrastructure_pid is not None


def has_active_runs() -> bool:
    """Return whether a run of the pool is in progress."""
    with get_client(sync_client=True) as client:
        return bool(_runs_of_pool(client, OPEN_STATES))


def cancel_waiting(client: SyncPrefectClient, message: str) -> int:
    """Cancel the pool's runs that have not started, except those of schedules; return how many.

    The schedule, while it is switched on, would create those again.
    """
    waiting = [StateType.SCHEDULED, StateType.PENDING]
    runs = _runs_of_pool(client, waiting)
    asked_for = [run for run in runs if not run.auto_scheduled and CATCH_UP not in run.tags]
    for run in asked_for:
        client.set_flow_run_state(run.id, Cancelled(message=message), force=True)
    return len(asked_for)


def _runs_of_pool(client: SyncPrefectClient, states: list[StateType]) -> list[FlowRun]:
    pool = WorkPoolFilter.model_validate({"name": {"any_": [POOL]}})
    return client.read_flow_runs(work_pool_filter=pool, flow_run_filter=in_states(states))

"""Follows a flow run in the terminal: its tasks, its log lines, its end, its table."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from httpx import TransportError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, LogFilter
from prefect.client.schemas.objects import FlowRun, Log, StateType
from prefect.client.schemas.sorting import LogSort, TaskRunSort
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from rich.console import Console
from rich.text import Text

from flows.console import first_line, is_shown
from flows.flow_runs import FLOW_NAME, executing, is_of_a_terminal
from flows.summary_table import print_summary
from rlcore.results.folders import run_directory
from schemas.errors import UserError, did_you_mean
from tasks.runtime.crashes import in_states

T = TypeVar("T")
POLL_S = 1.0
START_DEADLINE_S = 90.0
SERVER_PATIENCE_S = 600.0
LOG_PAGE = 200
LATE_LINES = timedelta(seconds=10)  # log lines arrive in batches, out of order
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
QUIET_STATES = ("Pending", "Scheduled", "Submitting")
LEVELS = {30: "yellow", 40: "red", 50: "bold red"}
EXCEPTION_PREFIXES = ("Flow run encountered an exception: ", "UserError: ", "ArtifactError: ")


def create_run(
    recipe: str, overrides: dict[str, Any] | None = None, *, known: Sequence[str] = ()
) -> FlowRun:
    """Create a run of the deployment ``rl-pipeline/<recipe>`` for the worker to execute.

    Raises UserError naming the nearest deployment when there is none of that name.
    """
    if known and recipe not in known:
        raise UserError(
            f"recipe '{recipe}' has no deployment; there are {', '.join(known)}"
            f"{did_you_mean(recipe, known)}"
        )
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(f"{FLOW_NAME}/{recipe}")
        return client.create_flow_run_from_deployment(
            deployment.id, parameters={**deployment.parameters, "overrides": overrides or {}}
        )


@dataclass
class _Follower:
    """Tracks what has been printed of one flow run and its child runs."""

    client: SyncPrefectClient
    flow_run_id: UUID
    owner: UUID  # the run whose process it is in
    console: Console
    printed: set[UUID] = field(default_factory=set)
    newest: datetime | None = None
    state: str = ""
    alone: bool = False  # without a worker
    stages: dict[UUID, str] = field(default_factory=dict)

    def poll(self) -> FlowRun:
        """Print what is new; return the current flow run."""
        run = self.client.read_flow_run(self.flow_run_id)
        if (name := run.state_name or "unknown") != self.state:
            self.state = name
            if name not in QUIET_STATES:
                self._print_lines(f"{run.name}: {name}", "cyan")
        for log in self._new_logs():
            if is_shown(log.name, log.message):
                self.console.print(_line(log))
        self._print_stages()
        return run

    def _print_stages(self) -> None:
        """Print the tasks of the run itself (its stages, not the loop's) as they change state."""
        stages = self.client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[self.flow_run_id])),
            sort=TaskRunSort.EXPECTED_START_TIME_ASC,
        )
        for stage in stages:
            name = stage.state_name or ""
            if name in QUIET_STATES or self.stages.get(stage.id) == name:
                continue
            self.stages[stage.id] = name
            took = f" after {stage.total_run_time.total_seconds():.1f} s"
            ended = stage.state is not None and stage.state.is_final() and name != "Cached"
            title = stage.name.rsplit("-", 1)[0]  # Prefect appends digits
            self._print_lines(f"{title}: {name}{took if ended else ''}", "cyan")

    def _print_lines(self, text: str, style: str) -> None:
        self.console.print(Text(f"{datetime.now():%H:%M:%S} {text}", style=style))

    def without_worker(self, worker_log: Path | None) -> None:
        """Print that the worker ended; its run continues in its own process. Of a run that no
        worker started, as ``rl-pipeline run`` does, print nothing.

        Raises UserError when that process has ended too, and nothing can report how the run ended.
        """
        owner = self.client.read_flow_run(self.owner)
        process, of_a_terminal = executing(owner), is_of_a_terminal(owner)
        run = self.client.read_flow_run(self.flow_run_id)
        if process is None and not _ended(run):
            where = f"; see {worker_log}" if worker_log else ""
            if of_a_terminal:
                raise UserError(
                    f"process {owner.infrastructure_pid}, which executed {run.name}, ended without"
                    " a word while it was"
                    f" {run.state_name}; the same command continues the run's stages"
                )
            raise UserError(
                f"The worker ended while {run.name} was {run.state_name}, and no process executes"
                f" it{where}. `make up` starts a worker; the same command continues the run's"
                " stages"
            )
        if process is not None and not of_a_terminal and not self.alone:
            self.alone = True
            self.console.print(
                f"The worker ended; {run.name} continues in process {process}. `make up` starts a"
                " worker for later runs.",
                style="yellow",
            )

    def _new_logs(self) -> list[Log]:
        """Return the lines of the run and its child runs not printed so far, by time."""
        below = {"parent_flow_run_id": {"any_": [self.flow_run_id]}}
        children = self.client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(below))
        family = [self.flow_run_id, *(child.id for child in children)]
        since = (self.newest or EPOCH) - LATE_LINES
        wanted = {"flow_run_id": {"any_": family}, "timestamp": {"after_": since}}
        fresh: list[Log] = []
        while True:
            page = self.client.read_logs(
                log_filter=LogFilter.model_validate(wanted),
                limit=LOG_PAGE,
                offset=len(fresh),
                sort=LogSort.TIMESTAMP_ASC,
            )
            fresh += page
            if len(page) < LOG_PAGE:
                break
        lines = [log for log in fresh if log.id not in self.printed]
        self.printed.update(log.id for log in lines)
        if lines:
            self.newest = max(log.timestamp for log in lines)
        return lines


def follow(
    flow_run_id: UUID,
    *,
    root: Path,
    ui_url: str,
    worker_alive: Callable[[], bool] = lambda: True,
    worker_log: Path | None = None,
    console: Console | None = None,
    owner: UUID | None = None,
) -> int:
    """Print a flow run's log lines and states until it ends, then its table or its error.

    Returns 0 when it completed and 1 otherwise. Ctrl-C stops following, not the run. ``root``: the
    project, which holds the run folders. ``owner``: the run that called this one, in whose process
    it is. Raises UserError when no worker starts the run, or the server does not answer for
    ``SERVER_PATIENCE_S``.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    # The client would retry for a minute before it reports that the server does not answer.
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True) as client,
    ):
        follower = _Follower(client, flow_run_id, owner or flow_run_id, console)
        waiting_since = time.monotonic()
        try:
            while not _ended(run := patient_answer(follower.poll, console)):
                if follower.state not in (*QUIET_STATES, "Late"):
                    waiting_since = time.monotonic()
                time.sleep(POLL_S)
                if not worker_alive():
                    patient_answer(partial(follower.without_worker, worker_log), console)
                else:
                    check = partial(_check_pickup, client, run, waiting_since, worker_log)
                    patient_answer(check, console)
        except KeyboardInterrupt:
            console.print(
                f"No longer following; the run continues. To cancel it: prefect flow-run cancel"
                f" {flow_run_id}"
            )
            return 1
        time.sleep(POLL_S)  # the last log lines arrive after the final state
        patient_answer(follower.poll, console)
    assert run.state is not None, "an ended run has a state"
    link = f"{ui_url}/runs/flow-run/{flow_run_id}"
    if not run.state.is_completed():
        console.print(Text(f"{run.state.name}: {_sentence(run.state.message)}", style="red"))
        console.print(f"Details: {link}" + (f" and {worker_log}" if worker_log else ""))
        return 1
    summary = root / run_directory(run.parameters["recipe"], str(run.id)) / "summary.json"
    if summary.is_file():
        print_summary(json.loads(summary.read_text(encoding="utf-8")), console=console)
        console.print(f"Summary: {summary}")
    console.print(f"Run page: {link}")
    return 0


def patient_answer(ask: Callable[[], T], console: Console) -> T:
    """Return the result of ``ask`` once the server answers; print when it does not."""
    gone_since: float | None = None
    while True:
        try:
            answer = ask()
        except (TransportError, PrefectHTTPStatusError) as error:
            if isinstance(error, PrefectHTTPStatusError) and error.response.status_code < 500:
                raise
            if gone_since is None:
                gone_since = time.monotonic()
                console.print(
                    "The Prefect server does not answer; `make up` in another terminal starts it"
                    " again. The run continues and waits for it for ten minutes.",
                    style="yellow",
                )
            if time.monotonic() - gone_since > SERVER_PATIENCE_S:
                raise UserError(
                    f"the Prefect server did not answer for {SERVER_PATIENCE_S:.0f} s; `make up`"
                    " starts it, and the same command continues the run's stages"
                ) from error
            time.sleep(POLL_S)
            continue
        if gone_since is not None:
            console.print("The Prefect server answers again.", style="yellow")
        return answer


def _ended(run: FlowRun) -> bool:
    return run.state is not None and run.state.is_final()


def _check_pickup(
    client: SyncPrefectClient, run: FlowRun, waiting_since: float, worker_log: Path | None
) -> None:
    """Raise UserError where the pool runs neither this run in time nor one in front of it."""
    if time.monotonic() - waiting_since <= START_DEADLINE_S:
        return
    busy = in_states([StateType.RUNNING], id={"not_any_": [run.id]})
    others = client.read_flow_runs(flow_run_filter=busy)
    if not any(other.work_pool_name == run.work_pool_name for other in others):
        where = f"; see {worker_log}" if worker_log else ""
        raise UserError(
            f"the worker did not start {run.name} within {START_DEADLINE_S:.0f} s{where}"
        )


def _line(log: Log) -> Text:
    local = log.timestamp.astimezone()
    return Text(f"{local:%H:%M:%S} {first_line(log.message)}", style=LEVELS.get(log.level, ""))


def _sentence(message: str | None) -> str:
    """Return a failed state's message without Prefect's prefix."""
    text = message or "no message; the log above has more"
    for prefix in EXCEPTION_PREFIXES:
        text = text.removeprefix(prefix)
    return text

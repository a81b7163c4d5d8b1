"""A dead run leaves nothing Running: not its child runs, not their tasks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
)

from tasks.runtime.crashes import close_run

pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import sys, time
from pathlib import Path
from prefect import flow, task
from prefect.runtime import flow_run

@task
def step():
    time.sleep(60)

@flow
def child():
    step()

@flow
def parent():
    Path(sys.argv[1]).write_text(str(flow_run.id))
    child()

parent()
"""


def _tasks(client: SyncPrefectClient, flow_run_id: UUID) -> list[str | None]:
    only = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    return [task.state_name for task in client.read_task_runs(flow_run_filter=only)]


def _child(client: SyncPrefectClient, parent_id: UUID) -> UUID | None:
    below = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent_id]))
    runs = client.read_flow_runs(flow_run_filter=below)
    return runs[0].id if runs else None


def test_killed_run_is_closed_down_to_its_last_task(prefect_server: str, tmp_path: Path) -> None:
    name = tmp_path / "id"
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(name)], env=os.environ)
    try:
        with get_client(sync_client=True) as client:
            end = time.monotonic() + 300
            child: UUID | None = None
            while child is None or _tasks(client, child) != ["Running"]:
                assert time.monotonic() < end, "the step was never seen running"
                time.sleep(0.3)
                if child is None and name.exists() and name.read_text():
                    child = _child(client, UUID(name.read_text()))
            program.send_signal(signal.SIGKILL)
            program.wait()
            parent = UUID(name.read_text())
            for _ in range(2):  # Prefect may call the hook twice
                close_run(client, parent, "killed by a test")
            assert client.read_flow_run(parent).state_name == "Crashed"
            assert client.read_flow_run(child).state_name == "Crashed"
            assert _tasks(client, child) == ["Crashed"]
            assert _tasks(client, parent) == ["Crashed"]
    finally:
        program.kill()

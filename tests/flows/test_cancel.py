"""``rl-pipeline stop``, the run's page, Ctrl-C and SIGTERM cancel a run; the same command continues
it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from uuid import UUID

import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
)
from prefect.runtime import flow_run
from prefect.states import Crashed

from flows import local
from flows.cancelling import with_cancelling
from flows.cli import main
from flows.paths import AUTOMATIONS
from rlcore.store.artifacts import ArtifactStore
from tests.conftest import HOME
from tests.flows.small_run import ROOT, SMALL
from tests.tiers import fast

pytestmark = pytest.mark.timeout(180)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["stop", "SIGTERM", "Ctrl-C"])
def test_a_run_of_this_terminal_is_cancelled(
    by: str,
    prefect_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Prefect took a signal for a crash, and nothing but a signal reached the process."""
    monkeypatch.setattr(local, "HOME", HOME)
    overrides = {**SMALL, "rl.iterations": 2000, "store": str(tmp_path / "store")}
    arguments = [f"{name}={json.dumps(value)}" for name, value in overrides.items()]
    command = [sys.executable, "-m", "flows.cli", "run", "quickstart"]
    process = subprocess.Popen(
        [*command, *[word for one in arguments for word in ("-o", one)]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        store = ArtifactStore(tmp_path / "store")
        deadline = time.monotonic() + 300
        while len(store.keys("rollouts")) < 3:
            assert process.poll() is None, process.communicate()[0][-4000:]
            assert time.monotonic() < deadline, "no rollouts"
            time.sleep(0.2)
        if by == "stop":  # which ends in the signal too: the process sends it to itself
            _stop(tmp_path / "runs", capsys)
        elif by == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == (130 if by == "Ctrl-C" else 128 + signal.SIGTERM)
    assert "Cancelled; the same command continues where this run was." in output
    assert "Traceback" not in output.partition("flow run was cancelled")[2]
    (run_id,) = {m.producer for m in store.manifests() if m.kind == "rollouts"}
    with get_client(sync_client=True) as client:
        one = FlowRunFilter(id=FlowRunFilterId.model_validate({"any_": [run_id]}))
        (run,) = client.read_flow_runs(flow_run_filter=one)
        tasks = client.read_task_runs(flow_run_filter=one)
        below = FlowRunFilterParentFlowRunId.model_validate({"any_": [run_id]})
        children = client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=below))
    assert [child.name for child in children] == ["quickstart-rl"], "it carries its recipe's name"
    assert run.state_name == "Cancelled"
    assert tasks
    assert all(task.state is not None and task.state.is_final() for task in tasks)
    with store.hold(store.keys("rollouts")[0].partition("/")[0]):
        pass  # the key is free


def _stop(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stop the latest run; it is listed as running before, and cannot be stopped again."""
    assert main(["runs", "--runs", str(runs), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["state"] == "running"
    main(["status", "--format", "json"])
    server, _, *runs_under_way = json.loads(capsys.readouterr().out)
    assert server["state"] == "running"
    assert f"run {row['run']}" in [one["what"] for one in runs_under_way]
    assert main(["stop", "latest"]) == 0
    printed = capsys.readouterr().out
    assert f"Cancelled: {row['run']} (flow run " in printed
    assert "The same command continues it." in printed
    assert main(["stop", row["run"]]) == 2
    assert "has ended (cancelled); there is nothing to stop" in capsys.readouterr().err
    main(["runs", "--runs", str(runs), "--format", "json"])
    assert json.loads(capsys.readouterr().out)[0]["state"] == "cancelled"


def test_a_run_that_slept_with_its_machine_is_running_again(prefect_server: str) -> None:
    """On waking the server took it for dead, and ``stop`` refused it."""
    (automation,) = yaml.safe_load(AUTOMATIONS.read_text())
    (action,) = automation["actions"]
    seen: list[str] = []

    @flow(name="rl-pipeline")
    def sleeper() -> None:
        run_id = UUID(flow_run.id)
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run_id, Crashed(message=action["message"]), force=True)
            deadline = time.monotonic() + 60
            while not seen or (seen[-1] != "Running" and time.monotonic() < deadline):
                seen.append(str(client.read_flow_run(run_id).state_name))
                time.sleep(0.1)

    state = with_cancelling(sleeper)(return_state=True)
    assert (seen[0], seen[-1]) == ("Crashed", "Running")
    assert state.is_completed()


IN_A_TERMINAL = """
import time
from prefect import flow
from flows.inline import run_inline
from prefect.runtime import flow_run

@flow(name="rl-pipeline")
def long(recipe):
    print("begun", flow_run.id, flush=True)
    time.sleep(120)

run_inline(lambda: long, debug=False, quiet=False, recipe="quickstart")
"""


@pytest.mark.parametrize("end", fast([signal.SIGINT, signal.SIGKILL], signal.SIGINT))
def test_a_run_of_a_terminal_is_watched_and_ends_by_ctrl_c(
    end: signal.Signals,
    prefect_server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``watch`` looked for a worker's process, and said of a live run that it had ended; Ctrl-C was
    a crash, which is told to the webhook."""
    monkeypatch.setattr(local, "HOME", HOME)
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    codes: list[int] = []
    try:
        assert process.stdout is not None
        while not (line := process.stdout.readline().strip()).startswith("begun"):
            assert process.poll() is None
        run_id = line.split()[1]
        monkeypatch.delenv("PREFECT_API_URL")  # which would be a server whose worker is elsewhere
        watch = Thread(target=lambda: codes.append(main(["watch", run_id[:8]])), daemon=True)
        watch.start()
        watch.join(5)
        assert watch.is_alive(), capsys.readouterr()
        os.killpg(process.pid, end)  # as a terminal does: whoever is in the foreground
        _, said = process.communicate(timeout=300)
        watch.join(300)
    finally:
        process.kill()
    shown = capsys.readouterr()
    assert "worker" not in shown.out + shown.err
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(run_id)).state
    assert state is not None
    if end == signal.SIGINT:
        assert process.returncode == 130
        assert said.splitlines()[-2:] == [
            "Cancelling: its workers end first.",
            "Cancelled; the same command continues where this run was.",
        ]
        assert (state.name, codes) == ("Cancelled", [1])
    else:
        assert f"process {process.pid}, which executed " in shown.err
        assert codes == [2]


SLOW_END = """
import sys, time
from prefect import flow
from flows.inline import run_inline

def slowly(flow, flow_run, state):
    print("ending", flush=True)
    time.sleep(6)
    print("ended", flow_run.id, flush=True)

@flow(on_cancellation=[slowly])
def long():
    print("begun", flush=True)
    time.sleep(120)

run_inline(lambda: long, debug=False, quiet=False)
"""


@pytest.mark.slow
def test_a_second_signal_does_not_come_into_the_end_of_the_first(prefect_server: str) -> None:
    """What watches for a cancellation from elsewhere took that of the signal for one, and a run
    whose hooks took longer than a look stayed Cancelling."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_END],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "begun":
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    (run_id,) = [line.split()[1] for line in said.splitlines() if line.startswith("ended ")]
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(run_id)).state
    assert state is not None
    assert state.name == "Cancelled"

"""A flow run continues while the Prefect server is down, and its calls arrive when it is back."""

import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from rich.console import Console

from flows import local, services

ROOT = Path(__file__).parents[3]

# New clients, of both kinds, that call before anybody listens.
CLIENTS = """
import asyncio, http.server, sys, threading, time
import tasks.runtime.process
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient
port = int(sys.argv[1])
tasks.runtime.process.PATIENCE_S = float(sys.argv[2])
tasks.runtime.process.POLL_S = 0.1
tasks.runtime.process.wait_for_server()
tasks.runtime.process.wait_for_server()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200), self.end_headers()
def listen():
    time.sleep(1.5)
    http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
threading.Thread(target=listen, daemon=True).start()
url = f"http://127.0.0.1:{port}/"
async def ask():
    async with PrefectHttpxAsyncClient(enable_csrf_support=False) as client:
        return (await client.get(url)).status_code
with PrefectHttpxSyncClient(enable_csrf_support=False) as client:
    print(client.get(url).status_code, asyncio.run(ask()))
"""

# Says when it has begun, then works through tasks and a subflow whatever becomes of the server.
FLOW = """
import sys, time
from prefect import flow, task
from prefect.logging import get_run_logger
from tasks.runtime.process import wait_for_server

@task
def step(number):
    get_run_logger().warning(f"step {number}")

@flow
def below():
    step(2)

@flow
def above():
    wait_for_server()
    step(0)
    print("begun", flush=True)
    sys.stdin.readline()
    step(1)
    below()
    return 7

print(above(), flush=True)
"""


def _clients(patience_s: float) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", CLIENTS, str(services.free_port()), str(patience_s)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_what_is_patched_is_there() -> None:
    """A later Prefect or rich may call it otherwise, and a patch of nothing raises no error."""
    for client in (PrefectHttpxAsyncClient, PrefectHttpxSyncClient):
        assert "send" in vars(client)
        assert "self._has_connected" in inspect.getsource(client)
    for owner, name in (
        (PrefectEventsClient, "_reconnect"),
        (EventsWorker, "set_client_override"),
        (Console, "on_broken_pipe"),
    ):
        assert name in vars(owner)
    taken = inspect.signature(PrefectEventsClient).parameters
    assert "reconnection_attempts" in taken


def test_new_clients_wait_for_a_server_that_is_away() -> None:
    assert _clients(30.0).stdout.split() == ["200", "200"]


def test_they_do_not_wait_for_ever() -> None:
    assert "ConnectError" in _clients(0.2).stderr


# Servers that die while they are greeted.
GREETED = """
import asyncio
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.events.clients import PrefectEventsClient
from tasks.runtime.process import wait_for_server
wait_for_server()
wait_for_server()
greeted = []
async def die(reader, writer):
    greeted.append(await reader.read(1))
    writer.close()
async def main():
    dying = await asyncio.start_server(die, "127.0.0.1", 0)
    port = dying.sockets[0].getsockname()[1]
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}):
        client = PrefectEventsClient()
        for _ in range(2):
            try:
                await client._reconnect()
            except OSError as error:
                print(type(error).__name__)
    print(len(greeted))
    dying.close()
asyncio.run(main())
"""


def test_a_server_that_dies_while_it_is_greeted_is_tried_again() -> None:
    said = subprocess.run(
        [sys.executable, "-c", GREETED], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert said.stdout.split() == ["ConnectionResetError"] * 2 + ["2"], said.stderr


UNHEARD = """
import sys
from rich.console import Console
from tasks.runtime.process import ignore_lost_output
ignore_lost_output()
console = Console(file=sys.stderr)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(3):
    console.print("nobody reads this")
    print("nor this", flush=True)
open(sys.argv[1], "w").write("done")
"""


def test_a_run_goes_on_when_nobody_reads_its_output(tmp_path: Path) -> None:
    """That of a killed worker ended with it: rich raises SystemExit at a closed pipe."""
    process = subprocess.Popen(
        [sys.executable, "-c", UNHEARD, str(tmp_path / "done")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "ready\n"
    process.stdout.close()
    process.stderr.close()
    process.stdin.write("go on\n")
    process.stdin.close()
    assert process.wait(timeout=300) == 0
    assert (tmp_path / "done").read_text() == "done"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    services.stop(tmp_path, "server")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_flow_outlives_a_killed_server(home: Path) -> None:
    server = local.start_server(home)
    local.wait_healthy(home, server)
    assert server.port is not None
    environment = {**os.environ, **local.client_settings(home, server.port)}
    run = subprocess.Popen(
        [sys.executable, "-c", FLOW],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert run.stdout is not None
        assert run.stdin is not None
        assert run.stdout.readline() == "begun\n"
        os.kill(server.pid, signal.SIGKILL)
        run.stdin.write("go on\n")
        run.stdin.flush()
        time.sleep(20)  # past the patience of Prefect's own clients and events
        assert run.poll() is None
        again = local.start_server(home)
        assert (again.port, again.pid != server.pid) == (server.port, True)
        output, _ = run.communicate(timeout=300)
    finally:
        run.kill()
    assert (output, run.returncode) == ("7\n", 0)
    wanted = ["above Completed", "below Completed", *["step Completed"] * 3]
    wanted += ["step 0", "step 1", "step 2", ""]
    deadline = time.monotonic() + 300  # the server records what it was sent in its own time
    while (seen := _seen(environment)) != wanted and time.monotonic() < deadline:
        time.sleep(0.5)
    assert seen == wanted


def _seen(environment: dict[str, str]) -> list[str]:
    asked = subprocess.run(
        [sys.executable, "-c", SEEN],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return asked.stdout.split("\n")


SEEN = """
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    flows = {flow.id: flow.name for flow in client.read_flows()}
    for run in sorted(client.read_flow_runs(), key=lambda run: flows[run.flow_id]):
        print(flows[run.flow_id], run.state_name)
    for run in client.read_task_runs():
        if run.name.startswith("step"):
            print("step", run.state_name)
    lines = [log.message for log in client.read_logs(limit=200)]
    print("\\n".join(sorted(line for line in lines if line.startswith("step "))))
"""

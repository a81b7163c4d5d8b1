"""Long-lived processes are found again, never mistaken, and end with all they started."""

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from flows import services
from schemas.errors import UserError

pytestmark = pytest.mark.timeout(60)

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys, time;"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)",
]


def test_started_service_is_found_and_ends_with_its_children(tmp_path: Path) -> None:
    service = services.start(tmp_path, "parent", PARENT, os.environ, cwd=tmp_path)
    assert services.find(tmp_path, "parent") == service
    process = psutil.Process(service.pid)
    end = time.monotonic() + 300
    while not (children := process.children()) and time.monotonic() < end:
        time.sleep(0.05)
    assert children
    assert services.stop(tmp_path, "parent")
    assert not service.alive()
    assert not any(child.is_running() for child in children), "a flow run would outlive its worker"
    assert services.find(tmp_path, "parent") is None
    assert not services.stop(tmp_path, "parent")


@pytest.mark.parametrize("content", ["", "{", '{"pid": 1}'], ids=["empty", "cut", "foreign"])
def test_broken_pid_file_is_no_service(tmp_path: Path, content: str) -> None:
    (tmp_path / "server.json").write_text(content)
    assert services.find(tmp_path, "server") is None


def test_reused_pid_is_not_ours(tmp_path: Path) -> None:
    """After a reboot the recorded pid may be another program's; ending it would be a disaster."""
    stale = {"name": "server", "pid": os.getpid(), "started_at": 1.0, "port": 4200}
    (tmp_path / "server.json").write_text(json.dumps(stale))
    assert services.find(tmp_path, "server") is None
    assert not services.stop(tmp_path, "server")


def test_service_that_ends_at_once_shows_its_last_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no database here')"]
    service = services.start(tmp_path, "server", command, os.environ, cwd=tmp_path)
    with pytest.raises(UserError, match=r"the server ended .*server\.log .*no database here"):
        services.wait_ready(tmp_path, service, lambda: False, 20, what="the server")


def test_deadline_names_whom_it_waited_for(tmp_path: Path) -> None:
    service = services.start(tmp_path, "worker", SLEEP, os.environ, cwd=tmp_path)
    with pytest.raises(
        UserError, match=r"within 1 s, though its process \d+ runs; see .*worker\.log"
    ):
        services.wait_ready(tmp_path, service, lambda: False, 1, what="the worker")
    services.stop(tmp_path, "worker")


def test_taken_port_is_passed_over() -> None:
    with socket.socket() as other:
        other.bind((services.HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        assert services.free_port([taken]) != taken
    free = services.free_port()
    assert services.free_port([free]) == free


def test_that_the_usual_port_is_taken_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind((services.HOST, 0))
        other.listen()
        usual = other.getsockname()[1]
        port = services.own_port(tmp_path, usual)
        assert services.own_port(tmp_path, usual) == port
    said = capsys.readouterr().err
    assert said == f"port {usual} is taken: the Prefect server is on {port}\n"


def test_of_two_servers_that_start_at_once_each_has_its_own_port(tmp_path: Path) -> None:
    """A server takes seconds until it listens, and by then the other had what both had chosen."""
    usual = services.free_port()
    homes = [tmp_path / name for name in ("a", "b")]
    for home in homes:
        home.mkdir()
    with (
        services.own_socket(homes[0], usual) as first,
        services.own_socket(homes[1], usual) as second,
    ):
        ports = [each.getsockname()[1] for each in (first, second)]
        assert ports[0] == usual != ports[1]
        script = (
            "import socket, sys; print(socket.socket(fileno=int(sys.argv[1])).getsockname()[1])"
        )
        command = [sys.executable, "-c", script, str(second.fileno())]
        child = services.start(
            homes[1], "server", command, os.environ, cwd=tmp_path, fds=[second.fileno()]
        )
    psutil.wait_procs([psutil.Process(child.pid)], timeout=60)
    assert services.log_path(homes[1], "server").read_text() == f"{ports[1]}\n"


def test_a_port_that_its_last_holder_leaves_is_waited_for(tmp_path: Path) -> None:
    """Else a server that was killed comes back elsewhere, and every bookmark is dead."""
    with socket.socket() as holder:
        holder.bind((services.HOST, 0))
        port = holder.getsockname()[1]
    assert services.own_port(tmp_path, port) == port
    with socket.socket() as holder:
        holder.bind((services.HOST, port))
        holder.listen()
        leaves = threading.Timer(0.3, holder.close)
        leaves.start()
        assert services.own_port(tmp_path, services.free_port()) == port
        leaves.join()


def test_a_port_is_kept_while_the_server_is_down_and_can_be_named(tmp_path: Path) -> None:
    """Runs and .env point to it: on another they called the old one for ten minutes."""
    first, second = services.free_port(), services.free_port()
    assert services.own_port(tmp_path, first) == first
    assert services.own_port(tmp_path, second) == first
    services.choose_port(tmp_path, second)
    assert services.own_port(tmp_path, first) == second
    with socket.socket() as other:
        other.bind((services.HOST, first))
        other.listen()
        with pytest.raises(UserError, match=rf"--port {first}: another program listens on it"):
            services.choose_port(tmp_path, first)
    for wrong in (0, -1, 65536):
        with pytest.raises(UserError, match=f"--port {wrong} is not a number from 1 to 65535"):
            services.choose_port(tmp_path, wrong)
    assert services.own_port(tmp_path, first) == second


def test_a_port_is_not_changed_while_the_server_runs(tmp_path: Path) -> None:
    sleeper = services.start(tmp_path, "server", SLEEP, os.environ, cwd=tmp_path, port=4200)
    try:
        services.choose_port(tmp_path, 4200)
        with pytest.raises(UserError, match="--port 4201: the server is on 4200; `make down`"):
            services.choose_port(tmp_path, 4201)
    finally:
        services.stop(tmp_path, sleeper.name)


def test_the_server_gets_no_key_of_other_services() -> None:
    kept = {
        "PATH": "/bin",
        "PREFECT_API_AUTH_STRING": "admin:0123456789",
        "PREFECT_API_DATABASE_CONNECTION_URL": "postgresql://me:0123456789@db/prefect",
    }
    keys = dict.fromkeys(("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"), "0123456789")
    assert services.without_keys({**kept, **keys}) == kept

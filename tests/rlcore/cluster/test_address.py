"""A wrong address of a cluster is a sentence within seconds, not minutes of Ray's warnings."""

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from ray._private import worker as ray_worker

from flows import services
from flows.cli import main
from rlcore.cluster import address
from rlcore.cluster.ray_cluster import RayCluster
from schemas.errors import UserError

pytestmark = pytest.mark.timeout(60)
PLAN = ["run", "quickstart", "--dry-run", "-o"]


@pytest.fixture
def web_server() -> Iterator[str]:
    """The address of something that answers, as Ray's dashboard does, and is no cluster."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    link, _ = server.accept()
                except OSError:
                    return
                with link:
                    link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("127.0.0.1:1", "does not answer ([Errno 111] Connection refused); give the host:port"),
        ("no-such-host.invalid:6379", "does not answer ("),
        ("cluster", "is not of the form host:port"),
        ("ray://127.0.0.1:10001", "is not of the form host:port"),
        ("127.0.0.1:99999", "is not of the form host:port"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = time.monotonic()
    assert main([*PLAN, f"hardware.ray_address='{given}'"]) == 2
    assert time.monotonic() - begun < 15
    error = capsys.readouterr().err
    assert error.startswith(f"error: hardware.ray_address = '{given}' {said}")
    assert error.count("\n") == 1
    assert "null for a cluster of the run's own" in error


def test_what_answers_and_is_no_cluster_is_refused(
    web_server: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(address, "ASK_S", 0.5)
    with pytest.raises(UserError, match=r"does not answer as a Ray cluster.*; give the host:port"):
        RayCluster(web_server)
    assert capfd.readouterr().err == "", "Ray's warnings hide the sentence"


@pytest.mark.slow
def test_a_cluster_that_answers_is_let_through(on_ray: RayCluster) -> None:
    node = ray_worker._global_node
    assert node is not None
    answer = address.check_address(node.gcs_address)
    assert answer is not None
    assert answer.mode == address.TOKEN
    assert [host.address for host in answer.hosts] == ["127.0.0.1"]
    assert answer.hosts[0].cpus >= 4
    assert address.check_address("auto") is None


TOKENS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
JOIN = """
import sys
from rlcore.cluster.ray_cluster import RayCluster
from rlcore.cluster.types import Placement
cluster = RayCluster(sys.argv[1])
target = "tests.rlcore.cluster.probe_worker:Probe"
probe = cluster.spawn(target, 1, name="probe", placement=Placement())
print("answer", probe.start("add", 2).result(60))
cluster.close()
"""


@contextmanager
def started(folder: Path, **environment: str) -> Iterator[str]:
    """A cluster of one head as docs/do/scale.md starts it, on loopback: its host:port."""
    port = services.free_port()
    command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block"]
    command += [f"--port={port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
    own = {k: v for k, v in os.environ.items() if k not in TOKENS} | environment
    own |= {"HOME": str(folder), **LOOPBACK}
    with (folder / "head.log").open("w") as log:
        head = subprocess.Popen(command, env=own, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + 300
        while "This command will now block" not in (folder / "head.log").read_text():
            assert head.poll() is None, (folder / "head.log").read_text()
            assert time.monotonic() < end, (folder / "head.log").read_text()
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        processes = [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]
        head.terminate()
        _, alive = psutil.wait_procs(processes, timeout=300)
        for process in alive:
            process.kill()


def join(address: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {k: v for k, v in os.environ.items() if k not in TOKENS} | environment
    own |= {"HOME": str(home), **LOOPBACK}
    command = [sys.executable, "-c", JOIN, address]
    return subprocess.run(
        command, env=own, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_cluster_is_joined_with_its_token_and_refused_without_in_one_sentence(
    tmp_path: Path,
) -> None:
    token, guess = secrets.token_hex(32), secrets.token_hex(32)
    home = tmp_path / "client"
    home.mkdir()
    kept = home / "token"
    kept.write_text(token + "\n")
    with started(tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token) as there:
        for given in (
            {"RAY_AUTH_TOKEN": token},
            {"RAY_AUTH_TOKEN_PATH": str(kept), "RAY_AUTH_MODE": "token"},
        ):
            joined = join(there, home, **given)
            assert joined.stdout.startswith("answer 3\n"), joined.stderr
        found = join("auto", home, RAY_ADDRESS=there, RAY_AUTH_TOKEN=token)
        assert found.stdout.startswith("answer 3\n"), found.stderr
        lost = join("auto", home, RAY_ADDRESS=there)
        assert f"'{there}' asks for a token, and none is set here" in lost.stderr
        for given, said in (
            ({}, "asks for a token, and none is set here; set RAY_AUTH_TOKEN"),
            ({"RAY_AUTH_MODE": "token"}, "asks for a token, and none is set here"),
            ({"RAY_AUTH_TOKEN": guess}, "refuses the token of RAY_AUTH_TOKEN; set RAY_AUTH_TOKEN"),
            (
                {"RAY_AUTH_TOKEN": token, "RAY_AUTH_MODE": "disabled"},
                "asks for a token, and RAY_AUTH_MODE = 'disabled' sends none; unset RAY_AUTH_MODE",
            ),
        ):
            refused = join(there, home, **given)
            last = refused.stderr.strip().splitlines()[-1]
            assert last.startswith(
                f"schemas.errors.UserError: hardware.ray_address = '{there}' {said}"
            ), refused.stderr
            assert token not in refused.stderr
            assert guess not in refused.stderr
    with started(tmp_path, RAY_AUTH_MODE="disabled") as there:
        assert join(there, home, RAY_AUTH_TOKEN=token).stdout.startswith("answer 3\n")
        refused = join(there, home, RAY_AUTH_TOKEN=token, RAY_AUTH_MODE="token")
        assert f"'{there}' asks for no token, so whoever reaches it" in refused.stderr


@pytest.mark.slow
def test_a_plan_says_that_the_token_is_refused(
    on_ray: RayCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = ray_worker._global_node
    assert node is not None
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a guess")
    assert main([*PLAN, f"hardware.ray_address='{node.gcs_address}'"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert (
        "refuses the token of RAY_AUTH_TOKEN; set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH" in error
    )

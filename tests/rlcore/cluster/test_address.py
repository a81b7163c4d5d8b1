"""A wrong address of a cluster is a sentence within seconds, not minutes of Ray's warnings."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from ray._private import worker as ray_worker

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


def test_a_cluster_that_answers_is_let_through(on_ray: RayCluster) -> None:
    node = ray_worker._global_node
    assert node is not None
    address.check_address(node.gcs_address)
    address.check_address("auto")

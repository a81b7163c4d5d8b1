"""A real S3 server (moto over HTTP) for the tests of the store; a home for those of Ray."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest


@pytest.fixture(scope="session")
def ray_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of every Ray that a test starts in this process."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    # fsspec keeps one client per protocol and arguments; the environment is not among them.
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    if fs.exists("artifacts"):
        fs.rm("artifacts", recursive=True)
    fs.mkdir("artifacts")
    return "s3://artifacts/runs"

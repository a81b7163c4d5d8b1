"""One real Prefect server for the whole test session, apart from anything of the user's.

Prefect reads its settings when it is first imported, so they are set here, before any test module.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import services
from flows.local import settings, start_server, wait_healthy

HOME = Path(tempfile.mkdtemp(prefix="rlp-prefect-"))
PORT = services.free_port()
for name in [name for name in os.environ if name.startswith("PREFECT_")]:
    del os.environ[name]
os.environ.update(settings(HOME, PORT))
os.environ["PREFECT_LOGGING_LEVEL"] = "WARNING"
os.environ["WANDB_MODE"] = "offline"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where torch finds no CUDA device; torch is asked only for them."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[str]:
    """The API URL of a running server; flows called in the test report to it."""
    server = start_server(HOME, PORT)
    assert server.port == PORT, f"port {PORT} was taken before the server started"
    wait_healthy(HOME, server)
    yield os.environ["PREFECT_API_URL"]
    from prefect.logging.handlers import APILogHandler

    APILogHandler().flush()  # what is still queued would complain that nobody listens
    services.stop(HOME, "server")


@pytest.fixture(scope="session", autouse=True)
def _remove_home() -> Iterator[None]:
    yield
    shutil.rmtree(HOME, ignore_errors=True)

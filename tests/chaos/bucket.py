"""A bucket (moto over HTTP on loopback) that can fall silent: connected, and without an answer."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec

from flows import services
from tests.chaos.watching import until

BUCKET = "chaos"
READY_S = 120.0


class Bucket:
    """The process that serves it."""

    def __init__(self, process: "subprocess.Popen[bytes]", endpoint: str) -> None:
        self._process = process
        self.environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def names(self, prefix: str = BUCKET) -> list[str]:
        """Return the paths of all that is below ``prefix``, which begins with the bucket's name."""
        return list(self._files().find(prefix))

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return self._files().cat_file(path)

    def make(self) -> None:
        """Make the bucket itself."""
        self._files().mkdir(BUCKET)

    def _files(self) -> Any:
        return fsspec.filesystem(
            "s3",
            key="test",
            secret="test",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            config_kwargs={"region_name": self.environment["AWS_DEFAULT_REGION"]},
            use_listings_cache=False,
        )

    def be_silent(self, seconds: float) -> None:
        """Answer nothing for a while; who has connected stays connected."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(self._process.pid, signal.SIGCONT)


@contextmanager
def bucket(log: Path) -> Iterator[Bucket]:
    """Yield a bucket of its own, while the context lasts. Raises AssertionError where its server
    does not come up."""
    port = services.free_port()
    command = [sys.executable, "-m", "moto.server", "-H", services.HOST, "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        made = Bucket(process, f"http://{services.HOST}:{port}")
        ready = until(lambda: _answers(made.environment["AWS_ENDPOINT_URL"]), READY_S)
        assert ready is not None, f"the bucket's server is not up after {READY_S:.0f} s: see {log}"
        made.make()
        yield made
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    with suppress(OSError):
        urllib.request.urlopen(f"{url}/moto-api/", timeout=2).close()
        return True
    return False

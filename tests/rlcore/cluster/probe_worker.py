"""The worker that the cluster tests run in other processes."""

import os
import signal
import subprocess
import time

from rlcore.cluster.progress import advance
from schemas.errors import UserError

ENVIRONMENT_AT_IMPORT = os.environ.get("PROBE", "")


class Probe:
    """A worker whose methods the tests choose."""

    def __init__(self, value: int) -> None:
        if value < 0:
            raise UserError(f"probe value = {value} must be >= 0; raise it")
        self.value = value

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def environment(self) -> str:
        return ENVIRONMENT_AT_IMPORT

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def size(self, data: bytes) -> int:
        return len(data)

    def refuse(self) -> None:
        raise UserError("this is refused; ask for something else")

    def fail(self) -> None:
        raise ValueError("the first line\nand another")

    def interrupted(self) -> int:
        """Return how a program ends that gets SIGINT."""
        program = subprocess.Popen(["sleep", "60"])
        program.send_signal(signal.SIGINT)
        return program.wait(timeout=30)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def step(self, pauses: list[float], note: str = "") -> int:
        """A call of the kind that counts what it has done."""
        for pause in pauses:
            time.sleep(pause)
            advance(note)
        return os.getpid()

    def die(self) -> None:
        os._exit(1)

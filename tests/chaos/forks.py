"""Runs in one process each, forked from one that has imported everything, so that a blow costs
seconds; also inside a mount of their own, whose disk is small."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from tests.flows.small_run import ROOT, environment


@dataclass
class Run:
    """A run under way. ``log``: the file of its output."""

    process: psutil.Process
    log: Path
    connection: Connection

    def ended(self) -> bool:
        """Return whether it has; then ``code`` returns at once."""
        return self.connection.poll(0)

    def code(self, limit_s: float) -> int:
        """Return its return code, as subprocess has it. Raises AssertionError, with the end of its
        output, where it has none in time; the run is killed then."""
        if not self.connection.poll(limit_s):
            os.killpg(self.process.pid, signal.SIGKILL)
            self.connection.recv()
            raise AssertionError(f"no end within {limit_s:.0f} s:\n{self.text()[-3000:]}")
        return self.connection.recv()

    def text(self) -> str:
        """Return what it has written so far."""
        return self.log.read_text(errors="replace")


class Forks:
    """A process that runs are forked from, one at a time."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", connection: Connection, *, mounted: bool
    ) -> None:
        self._process, self._connection, self._mounted = process, connection, mounted

    def start(self, folder: Path, arguments: list[str], own: Mapping[str, str]) -> Run:
        """Start ``python -m tests.flows.crash_points`` with ``arguments`` in ``folder``; ``own``:
        variables besides those of this process."""
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "output.txt"
        self._connection.send((str(folder), {**environment(), **own}, str(log), arguments))
        return Run(psutil.Process(self._connection.recv()), log, self._connection)

    def seen_by(self, path: Path) -> Path:
        """Return where this process finds what is at ``path`` for the runs."""
        return Path(f"/proc/{self._pid}/root{path}")

    @cached_property
    def _pid(self) -> int:
        """The process that forks: inside a mount it is not the one that was started."""
        below = psutil.Process(self._process.pid).children()
        return below[0].pid if self._mounted else self._process.pid


@contextmanager
def forks(disk: Path | None = None, size: int = 0) -> Iterator[Forks]:
    """Yield a process that forks runs; for them ``disk`` is an empty disk of ``size`` bytes."""
    command = [sys.executable, "-m", "tests.flows.run_server"]
    if disk is not None:
        disk.mkdir(parents=True, exist_ok=True)
        mounted = ["--dev-bind", "/", "/", "--size", str(size), "--tmpfs", str(disk)]
        command = ["bwrap", *mounted, "--die-with-parent", "--", *command]
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            cwd=ROOT,
            env=environment(),
            pass_fds=[theirs.fileno()],
        )
    with Connection(ours.detach()) as connection:
        yield Forks(process, connection, mounted=disk is not None)
    process.wait(60)

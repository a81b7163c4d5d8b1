"""Processes of this machine: whether one is stopped, and an end to those that answer no more."""

import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

END_S = 10.0  # until a process that was killed is gone
POLL_S = 0.05


def is_stopped(pid: int) -> bool:
    """Return whether process ``pid`` is stopped, by a signal or a debugger."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.NoSuchProcess:
        return False


def is_alive(process: psutil.Process) -> bool:
    """Return whether ``process`` has not ended, also where nobody has asked for its status yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill ``processes``, also those that are stopped, and wait until they are gone."""
    left = [process for process in processes if is_alive(process)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + END_S
    while any(is_alive(process) for process in left) and time.monotonic() < deadline:
        time.sleep(POLL_S)

"""The processes of our own Ray: what they may know, and that one which is stopped continues.

Where the GCS or a raylet is stopped, calls of Ray's own library wait in it without a limit: a
large argument, the start of an actor, ``ray.shutdown``. No deadline of ours ends them.
"""

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from rlcore.cluster.watch import LOOK_S, STOPPED_S, is_stopped
from rlcore.recipes.redaction import secrets_of

logger = logging.getLogger(__name__)

RAYS_OWN = "RAY_"  # variables with which Ray's processes recognise each other, its token among them


def rays_processes() -> set[psutil.Process]:
    """Return the processes below this one that run a program of Ray's."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any("/ray/" in word for word in process.cmdline()):
                found.add(process)
    return found


def kept_secrets(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that Ray's own processes do not get, as they use none of them."""
    found = secrets_of(environment)
    return {name: value for name, value in found.items() if not name.startswith(RAYS_OWN)}


@contextmanager
def without_secrets(services: Any) -> Iterator[None]:
    """Start Ray's processes within the context without ``kept_secrets``; ``services``: the module
    of Ray's that starts them. This process's own environment, which its other threads read, stays.
    """
    popen = services.ConsolePopen

    class Popen(popen):
        def __init__(self, *args: Any, env: Mapping[str, str], **kwargs: Any) -> None:
            withheld = kept_secrets(env)
            left = {name: value for name, value in env.items() if name not in withheld}
            super().__init__(*args, env=left, **kwargs)

    services.ConsolePopen = Popen
    try:
        yield
    finally:
        services.ConsolePopen = popen


class Continued:
    """Looks from a thread at the processes that a node of Ray's started, and continues one that
    has been stopped for ``STOPPED_S``, by SIGSTOP; what waited for it then continues."""

    def __init__(self, processes: Iterable[tuple[str, Any]]) -> None:
        """``processes``: each with its kind and an attribute ``pid``."""
        self._processes = [(kind, psutil.Process(process.pid)) for kind, process in processes]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="ray-continued", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no longer."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        stopped_s = dict.fromkeys((process for _, process in self._processes), 0.0)
        while not self._ended.wait(LOOK_S):
            for kind, process in self._processes:
                stopped = process.is_running() and is_stopped(process.pid)
                stopped_s[process] = stopped_s[process] + LOOK_S if stopped else 0.0
                if stopped_s[process] >= STOPPED_S:
                    self._continue(kind, process)
                    stopped_s[process] = 0.0

    def _continue(self, kind: str, process: psutil.Process) -> None:
        logger.error(
            f"Ray's {kind} (process {process.pid}) has been stopped for {STOPPED_S:.0f} s, by"
            " SIGSTOP or a debugger, and the run waits for it; it is continued (a debugger must let"
            " it go)"
        )
        with suppress(psutil.NoSuchProcess):
            process.resume()

"""A line of log in every long silence of a run: what it is doing, and for how long."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlcore.cluster.progress import current

SILENCE_S = 10.0
LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "rlcore")  # whose lines people see


class _LastLine(logging.Handler):
    """Remembers when a line was logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.at_s = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        self.at_s = time.monotonic()


@contextmanager
def pulse(log: Callable[[str], None], *, silence_s: float = SILENCE_S) -> Iterator[None]:
    """Log the current activity whenever nothing was logged for ``silence_s`` seconds."""
    last, ended = _LastLine(), threading.Event()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addHandler(last)

    def watch() -> None:
        while not ended.wait(min(1.0, silence_s / 4)):
            doing = current()
            if doing is not None and time.monotonic() - last.at_s >= silence_s:
                log(f"{doing[0]} is running, {doing[1]:.0f} s so far")
                last.at_s = time.monotonic()

    thread = threading.Thread(target=watch, name="pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for logger in loggers:
            logger.removeHandler(last)

"""Which log lines a run in this process prints, and how each is shortened: those of the run itself,
without Prefect's own."""

import logging
import os
import time

from prefect.logging.configuration import setup_logging
from prefect.logging.handlers import PrefectConsoleHandler

# Logged for every task and process; the stages' own lines are more specific.
NOISE = (
    "All deployment steps completed",
    "Beginning ",
    "Created ",
    "Deployment step ",
    "Encountered exception during execution",
    "Executing deployment step",
    "Finished in state ",
    "Running 1 deployment pull step",
    "Task run failed with exception",
    "View at ",
)
OURS = ("prefect.flow_runs", "prefect.task_runs", "rlcore")


def is_shown(logger: str, message: str) -> bool:
    """Return whether a line is from the run itself; the run page keeps all lines."""
    return logger.startswith(OURS) and not message.startswith(NOISE)


def first_line(message: str) -> str:
    """Return the first line of a message; a traceback is on the run page."""
    return message.strip().split("\n")[0]


class RunConsole(PrefectConsoleHandler):
    """Prefect's console handler, which prints what ``flows.follow`` shows, without tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool | logging.LogRecord:
        """Return whether the line is from the run itself."""
        return is_shown(record.name, record.getMessage()) and super().filter(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return time and first line."""
        local = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return f"{local} {level}{first_line(record.getMessage())}"


def simplify() -> None:
    """Make Prefect print by ``RunConsole``; what goes to its server stays whole.

    Prefect makes its handlers again for each run, from settings that may name another class.
    """
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_CLASS"] = f"{__name__}.{RunConsole.__name__}"
    setup_logging(incremental=False)

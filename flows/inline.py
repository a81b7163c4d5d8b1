"""A flow run in this process, which ends with it: what ``rl-pipeline run`` and ``evolve`` do."""

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from flows import services
from flows.output import progress_on_stderr
from schemas.errors import UserError

if TYPE_CHECKING:
    from prefect import Flow

INTERRUPTED = 130  # exit code after Ctrl-C (docs/reference/exit_codes.md)


def run_inline(
    load: "Callable[[], Flow[..., Any]]",
    *,
    debug: bool,
    quiet: bool,
    again: str = "",
    **parameters: Any,
) -> Any:
    """Return what the flow returns; a run that failed or was cancelled ends this process.

    The Prefect server is that of ``PREFECT_API_URL``, or this project's, started if it is not up.
    ``load``: imports the flow, once Prefect, which reads its settings then, can know the server.
    ``debug``: print every log line, and tracebacks. ``quiet``: print progress on stderr. ``again``:
    what to say, after a cancellation, of the same command. What it writes is for its owner only, as
    what a worker's runs write (``services.start``).
    """
    os.umask(services.PRIVATE)
    with progress_on_stderr() if quiet else nullcontext():
        if "PREFECT_API_URL" not in os.environ:  # which would name the user's own server
            from flows import local

            print(f"Prefect server: {local.connect(local.HOME).ui_url}; `make down` ends it.")
        return _finished(load, debug, again, parameters)


def _finished(
    load: "Callable[[], Flow[..., Any]]", debug: bool, again: str, parameters: dict[str, Any]
) -> Any:
    from prefect._internal import control_listener
    from prefect.exceptions import TerminationSignal

    from flows.cancelling import cancelled_by_ctrl_c, with_cancelling
    from flows.console import first_line, simplify

    if not debug:
        simplify()
    # A worker sets this intent before it cancels a run; here SIGTERM itself means cancel. Without
    # it Prefect records a crash, and the process ends before the state is reported.
    control_listener._set_intent("cancel")
    with cancelled_by_ctrl_c() as interrupted:
        try:
            return with_cancelling(load())(**parameters)
        except TerminationSignal as signal:
            code = INTERRUPTED if interrupted() else 128 + signal.signal
            end(code, f"Cancelled; the same command{again} continues where this run was.")
        except UserError as error:
            end(1, f"error: {error}")  # the recipe was right: what the run met was not
        except Exception as error:
            if debug:
                raise
            what = f"{type(error).__name__}: {first_line(str(error))}"
            end(1, f"error: {what}; its traceback is on the run's page, and here with --debug")


def end(code: int, sentence: str = "") -> NoReturn:
    """End the process, once Prefect knows, with the sentence as the last line.

    Not by returning: threads that are under way would abort an interpreter that shuts down, or
    print what libraries left in memory after the sentence.
    """
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogHandler

    EventsWorker.drain_all(timeout=10)
    APILogHandler().flush()
    sys.stdout.flush()
    if sentence:
        print(sentence, file=sys.stderr, flush=True)
    os._exit(code)

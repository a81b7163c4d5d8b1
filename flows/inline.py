"""A flow run in this process, which ends with it: what ``rl-pipeline run`` and ``evolve`` do.
Ctrl-C, the run's page and ``rl-pipeline stop`` cancel it."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from httpx import TransportError
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError

from flows import services
from flows.output import progress_on_stderr
from schemas.errors import UserError

if TYPE_CHECKING:
    from prefect import Flow


POLL_S = 2.0
GRACE_S = 1.0  # from the state Cancelling to its hooks, in one process


_ending = threading.Event()


@contextmanager
def cancelled_by_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C cancel the run under way in the context, as SIGTERM does, which Prefect takes for
    a crash otherwise; yield whether it did.

    Another Ctrl-C would interrupt the end of the first, and is ignored. Before and after the run
    it is a KeyboardInterrupt. A process that ignores it, as behind ``nohup ... &``, goes on to.
    """
    came = threading.Event()

    def cancel(number: int, frame: FrameType | None) -> None:
        if not callable(signal.getsignal(signal.SIGTERM)):  # no run is under way
            signal.default_int_handler(number, frame)
        if not came.is_set() and not _ending.is_set():
            came.set()
            print("Cancelling: its workers end first.", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, cancel)
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def with_cancelling(flow: "Flow[..., Any]") -> "Flow[..., Any]":
    """Return ``flow`` with a watcher of its runs: SIGTERM for this process once its run is to be
    cancelled."""
    return flow.with_options(
        on_running=[_end_when_cancelled], on_cancellation=[_note_end, *flow.on_cancellation_hooks]
    )


def _end_when_cancelled(flow: Any, flow_run: Any, state: Any) -> None:
    """Hook of a flow's state Running. Records which process executes the run, for who follows
    it."""
    del flow, state
    _ending.clear()
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, infrastructure_pid=str(os.getpid()))
    watcher = threading.Thread(target=_watch, args=(flow_run.id,), name="cancelling", daemon=True)
    watcher.start()


def _note_end(flow: Any, flow_run: Any, state: Any) -> None:
    """Hook of a flow's state Cancelling, which Prefect sets in this process where a signal came."""
    del flow, flow_run, state
    _ending.set()


def _watch(run_id: UUID) -> None:
    with get_client(sync_client=True) as client:
        while True:
            time.sleep(POLL_S)
            try:
                state = client.read_flow_run(run_id).state
            except (TransportError, PrefectHTTPStatusError):  # a server that is away asks nothing
                continue
            # Where a signal came first, another would interrupt what Prefect does about it, and
            # the run stayed Cancelling for ever.
            if state is not None and state.is_cancelling() and not _ending.wait(GRACE_S):
                os.kill(os.getpid(), signal.SIGTERM)
            if state is not None and (state.is_cancelling() or state.is_final()):
                return


INTERRUPTED = 130  # exit code after Ctrl-C (docs/exit_codes.md)


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
        if "PREFECT_API_URL" not in os.environ:  # which would name a server of one's own
            from flows import local

            print(f"Prefect server: {local.connect(local.HOME).ui_url}; `make down` ends it.")
        return _finished(load, debug, again, parameters)


def _finished(
    load: "Callable[[], Flow[..., Any]]", debug: bool, again: str, parameters: dict[str, Any]
) -> Any:
    from prefect._internal import control_listener
    from prefect.exceptions import TerminationSignal

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

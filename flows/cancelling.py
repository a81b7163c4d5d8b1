"""Lets a run of this process be cancelled: by Ctrl-C, or from elsewhere, as the worker does for
those it started: from the run's page, or by ``rl-pipeline stop``."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from httpx import TransportError
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Running

if TYPE_CHECKING:
    from prefect import Flow


POLL_S = 2.0

GRACE_S = 1.0  # from the state Cancelling to its hooks, in one process
NO_HEARTBEAT = "no heartbeat for 120 s: its process is gone"  # as flows/automations.yaml says it


_ending = threading.Event()


@contextmanager
def cancelled_by_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C cancel the run under way in the context, as SIGTERM does, which Prefect takes for
    a crash otherwise; yield whether it did.

    Another Ctrl-C would interrupt the end of the first, and is ignored. Before and after the run
    it is a KeyboardInterrupt. A process that ignores it, as behind ``nohup ... &``, continues, too.
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
    """Hook of a flow's state Running. Record which process executes the run, for who follows it."""
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
                if state is not None and state.message == NO_HEARTBEAT:
                    # The machine slept: this process is here, and could not be stopped otherwise.
                    client.set_flow_run_state(run_id, Running())
                    continue
            except (TransportError, PrefectHTTPStatusError):  # a server that is away asks nothing
                continue
            # Where a signal came first, another would interrupt what Prefect does about it, and
            # the run stayed Cancelling for ever.
            if state is not None and state.is_cancelling() and not _ending.wait(GRACE_S):
                os.kill(os.getpid(), signal.SIGTERM)
            if state is not None and (state.is_cancelling() or state.is_final()):
                return

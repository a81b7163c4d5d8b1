"""Lets a run of this process be cancelled from elsewhere, as the worker does for those it started:
from the run's page, or by ``rl-pipeline stop``."""

import os
import signal
import threading
import time
from typing import Any
from uuid import UUID

from httpx import TransportError
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError

POLL_S = 2.0


def end_when_cancelled(flow: Any, flow_run: Any, state: Any) -> None:
    """Hook of a flow's state Running: SIGTERM for this process once its run is to be cancelled."""
    del flow, state
    watcher = threading.Thread(target=_watch, args=(flow_run.id,), name="cancelling", daemon=True)
    watcher.start()


def _watch(run_id: UUID) -> None:
    with get_client(sync_client=True) as client:
        while True:
            time.sleep(POLL_S)
            try:
                state = client.read_flow_run(run_id).state
            except (TransportError, PrefectHTTPStatusError):  # a server that is away asks nothing
                continue
            if state is not None and state.is_cancelling():
                os.kill(os.getpid(), signal.SIGTERM)
            if state is not None and (state.is_cancelling() or state.is_final()):
                return

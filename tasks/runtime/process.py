"""What the process of a flow is given before the flow does anything: log records without
secrets, in which a mistake of the user's is told once, and patience with a server or a worker
that is away.

Prefect's clients wait for a server only after a first answer, and a flow keeps creating new
clients; its events are dropped after ten seconds.
"""

import functools
import logging
import os
import re
from collections.abc import Callable
from typing import Any

import httpx
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from rich.console import Console
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed
from websockets.exceptions import InvalidMessage

from rlcore.recipes.redaction import alter_records, redact_logs
from schemas.errors import UserError

PATIENCE_S = 600.0
POLL_S = 1.0


def wait_for_server() -> None:
    """From now on, let this process wait ``PATIENCE_S`` seconds for an unreachable server.

    Calls, log lines and the states of tasks, which are events, are sent when it listens again. Call
    it before the first task of a flow run; a second call does nothing.
    """
    patient = retry(
        retry=retry_if_exception_type(httpx.ConnectError),
        stop=stop_after_delay(PATIENCE_S),
        wait=wait_fixed(POLL_S),
        reraise=True,
    )
    for client in (PrefectHttpxAsyncClient, PrefectHttpxSyncClient):
        if not hasattr(client.send, "__wrapped__"):
            send: Any = client.send
            client.send = patient(send)
            # A client that got an answer before would retry after 2, 4, 8, ... seconds.
            never = property(lambda self: False, lambda self, value: None)
            client._has_connected = never  # pyright: ignore[reportAttributeAccessIssue]
    attempts = int(PATIENCE_S)  # a second apart
    EventsWorker.set_client_override(PrefectEventsClient, reconnection_attempts=attempts)
    if not hasattr(PrefectEventsClient._reconnect, "__wrapped__"):
        # Prefect drops the events of a client of another class.
        PrefectEventsClient._reconnect = _trying_again(PrefectEventsClient._reconnect)


def _trying_again(reconnect: Callable[[PrefectEventsClient], Any]) -> Any:
    """Return ``reconnect``, which is called again also where a server dies while it is greeted;
    Prefect gives up then, and the states of tasks are lost."""

    @functools.wraps(reconnect)
    async def patient(client: PrefectEventsClient) -> None:
        try:
            await reconnect(client)
        except InvalidMessage as error:
            raise ConnectionResetError(str(error)) from error

    return patient


def ignore_lost_output() -> None:
    """From now on, let this process drop its output instead of ending when nothing reads it.

    A worker that is killed closes the pipe to which the runs that it started write, and rich, which
    writes Prefect's log lines, then raises SystemExit. The lines still reach the server.
    """

    def silence(self: Console) -> None:
        del self
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for output in (1, 2):
            os.dup2(nowhere, output)
        os.close(nowhere)

    Console.on_broken_pipe = silence


_ENDED = re.compile(r"(Finished in state \w+)\(.*\)", re.DOTALL)


def prepare_process() -> None:
    """Prepare this process for the flow that begins; a second call does nothing."""
    redact_logs()
    tell_mistakes_once()
    wait_for_server()
    ignore_lost_output()


def tell_mistakes_once() -> None:
    """Let the first record of a UserError in this process show its sentence without a traceback,
    and later ones of the same that it ended something else too.

    Prefect's engine logs the traceback of every error, and each flow and task that one passes
    through logs it again.
    """
    told: set[str] = set()

    def tell(record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, UserError):
            sentence = str(error)
            record.exc_info, record.exc_text = None, None
            record.msg = "Ended by the error above" if sentence in told else sentence
            record.args = ()
            told.add(sentence)
        elif any(sentence in str(record.msg) for sentence in told):
            record.msg = _ENDED.sub(r"\1", str(record.msg))

    alter_records("mistakes", tell)

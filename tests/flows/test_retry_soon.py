"""A client that met a locked database calls again soon, and seldom where it stays locked."""

import asyncio
import threading
import time
from typing import Any

import pytest
import uvicorn
from prefect.client.base import PrefectHttpxSyncClient

from flows.retry_soon import LOCKED_S, RetrySoon

pytestmark = pytest.mark.timeout(60)


def _refused(answers: list[int], gaps: list[float]) -> list[str | None]:
    """What ``RetrySoon`` says in ``answers``, each so many seconds after the one before."""
    now, said = [0.0], list[str | None]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        start = {"type": "http.response.start", "status": answers[len(said)], "headers": []}
        await send(start)

    async def call() -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await soon({"type": "http"}, None, send)  # pyright: ignore[reportArgumentType]
        headers = dict(sent[0]["headers"])
        said.append(headers.get(b"retry-after", b"").decode() or None)

    soon = RetrySoon(app, clock=lambda: now[0])
    for gap in gaps:
        now[0] += gap
        asyncio.run(call())
    return said


def test_a_client_that_met_a_locked_database_comes_back_soon() -> None:
    assert _refused([503, 200, 500, 503], [0, 0.2, 0.2, 60]) == ["0.1", None, None, "0.1"]


def test_over_all_attempts_a_client_waits_for_minutes() -> None:
    """A disk that hangs fails no run."""
    waits: list[float] = []
    for attempt in range(8):
        said = _refused([503] * (attempt + 1), [0.0, *(1.2 * wait for wait in waits)])
        waits = [float(wait or 0) for wait in said]
    assert waits[:3] == pytest.approx([0.1, 0.4, 1.6])
    assert 180 < sum(waits) < 300


def test_prefects_client_calls_again_when_it_is_told() -> None:
    """The real client and a server of its kind, whose database is locked at the first call."""
    calls: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(time.monotonic())
        status = 503 if len(calls) == 1 else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(RetrySoon(app), port=0, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        with PrefectHttpxSyncClient(
            base_url=f"http://127.0.0.1:{port}", enable_csrf_support=False
        ) as client:
            assert client.get("/").status_code == 200
    finally:
        server.should_exit = True
        thread.join(300)
    assert len(calls) == 2
    assert LOCKED_S <= calls[1] - calls[0] < 1.5, "it waits for two seconds where it is not told"

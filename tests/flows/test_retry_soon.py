"""A client that met a locked database calls again soon, and seldom where it stays locked."""

import asyncio
import time
from typing import Any

import httpx
import pytest
from prefect.client.base import PrefectHttpxSyncClient

from flows.retry_soon import LOCKED_S, RetrySoon


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
    """The real client, against an answer that this server would give."""
    calls: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(time.monotonic())
        if len(calls) == 1:
            return httpx.Response(503, headers={"retry-after": str(LOCKED_S)}, request=request)
        return httpx.Response(200, request=request)

    transport = httpx.MockTransport(answer)
    with PrefectHttpxSyncClient(
        transport=transport, base_url="http://server", enable_csrf_support=False
    ) as client:
        assert client.get("/").status_code == 200
    assert len(calls) == 2
    assert calls[1] - calls[0] < 1.5, "it waits for two seconds where it is not told"

"""When the clients of Prefect's server call again after they met its database locked."""

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCKED_S, LONGEST_S = 0.1, 60.0  # until the first call again, and at most


class RetrySoon:
    """ASGI middleware: says in an answer 503, Prefect's while SQLite is locked, when to call again.

    A lock mostly lasts milliseconds, and a client that is not told waits for two seconds and more,
    while a run's start is several calls. One that meets it again at once is to wait four times as
    long, so that over its eight attempts it waits for minutes.
    """

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock
        self._wait_s, self._refused = 0.0, -LONGEST_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 503:
                after = (b"retry-after", str(self._next_s()).encode())
                message = {**message, "headers": [*message["headers"], after]}
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)

    def _next_s(self) -> float:
        now = self._clock()
        again = now - self._refused < 2 * self._wait_s + 1.0
        self._wait_s = min(4 * self._wait_s, LONGEST_S) if again else LOCKED_S
        self._refused = now
        return self._wait_s

"""A real HTTP server on loopback that answers as a judge's does, and records what it was sent."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OWN_NONCE = re.compile(r"^VERDICT (\w+): CHOICE$", re.MULTILINE)
KEY = "planted-judge-key"


@dataclass
class Reply:
    """What the server sends; ``raw`` instead of a chat completion that says ``text``."""

    text: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    delay_s: float = 0.0
    hang: bool = False


Answer = Callable[[dict[str, Any], int], Reply]


def nonce_of(request: Mapping[str, Any]) -> str:
    """Return the nonce that the message asks for: the one in our own last lines."""
    return OWN_NONCE.findall(request["messages"][-1]["content"])[-1]


def response_in(request: Mapping[str, Any]) -> str:
    """Return what stands between the lines with the nonce."""
    nonce = nonce_of(request)
    content = request["messages"][0]["content"]
    return content.partition(f"BEGIN {nonce}\n")[2].partition(f"\nEND {nonce}")[0]


def pair_in(request: Mapping[str, Any]) -> tuple[str, str]:
    """Return the two responses that are compared, in their order."""
    nonce, content = nonce_of(request), request["messages"][0]["content"]
    first, second = (
        content.partition(f"BEGIN {label} {nonce}\n")[2].partition(f"\nEND {label} {nonce}")[0]
        for label in "AB"
    )
    return first, second


def prefers(worth: Callable[[str], float]) -> Answer:
    """Return an answer that prefers the response of two that is worth more, wherever it stands."""

    def answer(request: dict[str, Any], number: int) -> Reply:
        del number
        first, second = map(worth, pair_in(request))
        choice = "tie" if first == second else "A" if first > second else "B"
        return Reply(f"VERDICT {nonce_of(request)}: {choice}")

    return answer


def says(choice: str) -> Answer:
    """Return an answer that gives every response the verdict ``choice``."""
    return lambda request, _: Reply(f"Let me see.\nVERDICT {nonce_of(request)}: {choice}")


class JudgeServer:
    """Serves ``answer(request body, number of the request from 1)``; ``requests``, ``times``,
    ``headers`` and ``keys`` hold what came, ``most`` how many were under way at a time."""

    def __init__(self, answer: Answer, port: int = 0) -> None:
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.keys: list[str | None] = []
        self.headers: list[Message] = []
        self.most = self._now = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        handler = type("Handler", (_Handler,), {"judge": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The base URL of its API."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def close(self) -> None:
        """End it, and requests that hang."""
        self._ended.set()
        self._http.shutdown()
        self._http.server_close()

    def reply(self, request: dict[str, Any], headers: Message) -> Reply | None:
        """Record ``request`` and its headers and return what to send, None for nothing."""
        with self._lock:
            self.requests.append(request)
            self.times.append(time.monotonic())
            self.headers.append(headers)
            self.keys.append(headers.get("Authorization"))
            number = len(self.requests)
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            reply = self.answer(request, number)
            self._ended.wait(3600 if reply.hang else reply.delay_s)
            return None if reply.hang else reply
        finally:
            with self._lock:
                self._now -= 1


class _Handler(BaseHTTPRequestHandler):
    judge: JudgeServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = self.judge.reply(body, self.headers)
        if reply is None:
            self.close_connection = True
            return
        content = reply.raw
        if content is None:
            message = {"role": "assistant", "content": reply.text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            content = json.dumps(
                {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
                | {"choices": [choice]}
            ).encode()
        with suppress(BrokenPipeError, ConnectionResetError):  # a client that was killed
            self._send(reply, content)

    def _send(self, reply: Reply, content: bytes) -> None:
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@contextmanager
def judge_server(answer: Answer) -> Iterator[JudgeServer]:
    """Yield a server that ends with the context."""
    server = JudgeServer(answer)
    try:
        yield server
    finally:
        server.close()

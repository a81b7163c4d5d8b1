"""Who may call the Prefect server, before Prefect looks at a request: by the headers Host, Origin,
Sec-Fetch-Site and Authorization."""

import base64
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLICY_VIOLATION = 1008  # RFC 6455, section 7.4.1


def refusal(headers: Iterable[tuple[bytes, bytes]], names: Collection[str] = ()) -> str | None:
    """Return why a request with these headers is refused, or None where it may pass.

    Any port of this machine is accepted (``ssh -L`` maps one to another); Origin must then name the
    same host and port as Host, since a page of this server calls no other. ``names``: what else
    this server is called by; there https is accepted too, which a proxy may speak for it.
    """
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1:
        return "one Host header is needed"
    host = hosts[0].decode("latin-1").lower()
    called = _hostname(host)
    if called not in LOOPBACK and called not in names:
        known = " or ".join(["localhost", "127.0.0.1", *names])
        return f"the Host header names {host!r}; open this server as {known}"
    schemes = ("http", "https") if called in names else ("http",)
    for name, value in headers:
        origin = value.decode("latin-1")
        if name == b"origin" and origin.lower() not in [f"{s}://{host}" for s in schemes]:
            return f"a page of {origin!r} may not call this server"
    sent = dict(headers)  # https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header
    site, mode = sent.get(b"sec-fetch-site"), sent.get(b"sec-fetch-mode")
    if site in (b"cross-site", b"same-site") and mode != b"navigate":
        return "a page of another site may not call this server"
    return None


def _is_basic(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether what is given as a password can be one: Prefect raises at other text."""
    for name, value in headers:
        if name == b"authorization":
            try:
                scheme, encoded = value.split()
                base64.b64decode(encoded).decode("ascii")
            except ValueError:
                return False
            return scheme == b"Basic"
    return True


def _hostname(host: str) -> str | None:
    """Return the name in ``name[:port]``, or None for anything else."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018 - raises ValueError where it is no number
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and "@" not in host else None


class Guard:
    """ASGI middleware that answers what ``refusal`` refuses with 403, and what cannot be a password
    with 401."""

    def __init__(self, app: ASGIApp, names: Collection[str] = ()) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = None if scope["type"] == "lifespan" else refusal(scope["headers"], self._names)
        if reason is None and scope["type"] == "websocket":
            await self._connect(scope, receive, send)
        elif reason is None and scope["type"] == "http" and not _is_basic(scope["headers"]):
            answer = JSONResponse({"exception_message": "Unauthorized"}, status_code=401)
            await answer(scope, receive, send)
        elif reason is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()  # the handshake; closing before accepting returns 403
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
        else:
            await JSONResponse({"detail": reason}, status_code=403)(scope, receive, send)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Close a connection whose first message, which has the password, Prefect cannot read."""
        passed = False

        async def sent(message: Message) -> None:
            nonlocal passed
            passed |= message["type"] == "websocket.send"  # "auth_success" is the first
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except (TypeError, ValueError, LookupError, AttributeError):
            if passed:
                raise
            close = {"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "Invalid token"}
            await send(close)

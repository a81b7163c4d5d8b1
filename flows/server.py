"""The Prefect server of this project: Prefect's own application for the people of this machine.

Anyone who can call its API can run any command (a flow run's ``job_variables.command``), so there
are four independent defences: a password for every call (Prefect's basic auth), a CSRF token for
every change (Prefect's), and, by the guard here, a Host header that names this machine (against DNS
rebinding) and an Origin header, where there is one, of the page's own server (against other web
pages, also over WebSockets, which CORS does not cover).

The login page of Prefect's UI keeps its password in the browser; a one-time link does that for
``rl-pipeline open``. Reports and their pictures need no password (``flows.report_files``).
"""

import argparse
import base64
import json
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flows.report_files import ReportFiles

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LINK_S = 300.0  # a login link is valid for this long, once
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'nonce-{nonce}'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
POLICY_VIOLATION = 1008  # RFC 6455, section 7.4.1


def refusal(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return why a request with these headers is refused, or None where it may pass.

    Any port of this machine is accepted (``ssh -L`` maps one to another); Origin must then name the
    same host and port as Host, since a page of this server calls no other.
    """
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1:
        return "one Host header is needed"
    host = hosts[0].decode("latin-1").lower()
    if _hostname(host) not in LOOPBACK:
        return f"the Host header names {host!r}; open this server as localhost or 127.0.0.1"
    for name, value in headers:
        if name == b"origin" and value.decode("latin-1").lower() != f"http://{host}":
            return f"a page of {value.decode('latin-1')!r} may not call this server"
    return None


def _hostname(host: str) -> str | None:
    """Return the name in ``name[:port]``, or None for anything else."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018 - raises ValueError where it is no number
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and "@" not in host else None


class Guard:
    """ASGI middleware that answers what ``refusal`` refuses with 403."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = None if scope["type"] == "lifespan" else refusal(scope["headers"])
        if reason is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()  # the handshake; closing before accepting returns 403
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
        else:
            await JSONResponse({"detail": reason}, status_code=403)(scope, receive, send)


class LoginLinks:
    """Links that log one browser in, each valid once and for ``LINK_S`` seconds."""

    def __init__(self, password: str) -> None:
        self._password = password
        self._expiry: dict[str, float] = {}  # by token, on the monotonic clock

    async def create(self, request: Request) -> Response:
        """Answer with the path of a new link. The route is in Prefect's API, so it requires the
        password."""
        del request
        now = time.monotonic()
        self._expiry = {token: end for token, end in self._expiry.items() if end > now}
        token = secrets.token_urlsafe(32)
        self._expiry[token] = now + LINK_S
        return JSONResponse({"path": f"/login/{token}"}, status_code=201)

    async def redeem(self, request: Request) -> Response:
        """Answer with a page that stores the login where Prefect's UI expects it."""
        end = self._expiry.pop(request.path_params["token"], 0.0)
        if end <= time.monotonic():
            text = "This link was used or is too old. Run `rl-pipeline open` again.\n"
            return PlainTextResponse(text, status_code=410)
        nonce = secrets.token_urlsafe(16)
        encoded = base64.b64encode(self._password.encode()).decode()
        script = (
            f"localStorage.setItem('prefect-password', {json.dumps(encoded)});"
            "location.replace('/');"
        )
        headers = {name: value.format(nonce=nonce) for name, value in HEADERS.items()}
        page = f"<!doctype html><title>Prefect</title><script nonce={nonce!r}>{script}</script>"
        return HTMLResponse(page, headers=headers)


def create_guarded_app(reports: Path) -> ASGIApp:
    """Return Prefect's application behind the guard, with the routes of login links and of the
    report folders below ``reports``.

    Raises RuntimeError where Prefect's settings disable a defence.
    """
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    password = settings.api.auth_string
    if password is None or not settings.api.csrf_protection_enabled:
        raise RuntimeError("start this server by flows.local, which sets a password and CSRF")
    app: Any = create_app(final=True)
    links = LoginLinks(password.get_secret_value())
    app.api_app.router.routes.insert(0, Route("/login-links", links.create, methods=["POST"]))
    app.router.routes.insert(0, Route("/login/{token}", links.redeem, methods=["GET"]))
    app.router.routes[:0] = ReportFiles(reports).routes()
    return Guard(app)


def main() -> None:
    """Serve on a port of 127.0.0.1 until a signal ends it."""
    import uvicorn
    from prefect.settings import get_current_settings

    parser = argparse.ArgumentParser(prog="python -m flows.server", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--reports", type=Path, required=True, help="folder of report folders")
    options = parser.parse_args()
    settings = get_current_settings().server
    uvicorn.run(
        create_guarded_app(options.reports),
        host=LOOPBACK[0],
        port=options.port,
        proxy_headers=False,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )


if __name__ == "__main__":
    main()

"""The Prefect server of this project: Prefect's own application for the people of this machine,
or, with ``--listen`` and ``--name``, for those of a shared one (infra/compose.yaml).

Anyone who can call its API can run any command (a flow run's ``job_variables.command``), so there
are four independent defences: a password for every call (Prefect's basic auth), a CSRF token for
every change (Prefect's), and, by the guard below, a Host header that names this machine (against
DNS rebinding) and an Origin header, where there is one, of the page's own server (against other
web pages, also over WebSockets, which CORS does not cover).

The login page of Prefect's UI keeps its password in the browser; a one-time link does that for
``rl-pipeline open``. Reports and their pictures need no password (``flows.report_files``).
"""

import argparse
import asyncio
import base64
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Collection, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import event
from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection
from sqlalchemy.engine import Engine
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flows.report_files import ReportFiles
from schemas.errors import UserError

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


LINK_S = 300.0  # a login link is valid for this long, once
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'nonce-{nonce}'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# An iteration is five task runs, fifteen events. Written one by one, as by default, they cost this
# server twice the time; so, a state is in the database, and in the UI, within about a second.
BATCHED = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",  # whole seconds
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "500",
}
DATABASE_CACHE = 16 << 20  # bytes of SQLite in this process from which on pages are reused
# Prefect makes the description of its API, for a second of this process, at each call of the first,
# which needs no password; below /api all of them are, and need it.
DESCRIPTIONS = {"/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
CACHED_STATEMENTS = 16  # of a connection to SQLite


def bound_database_memory() -> None:
    """Bound what each connection to SQLite of this process keeps, and all of them together.

    As Prefect opens them, each of a pool's five keeps 128 statements, most of them inserts of one
    certain number of rows, of up to some hundred KiB, and 80 MiB of pages: a run of some thousand
    iterations fills both. https://www.sqlite.org/pragma.html#pragma_soft_heap_limit
    """

    def keep_few_statements(
        dialect: Dialect, _record: object, _arguments: object, options: dict[str, Any]
    ) -> None:
        if dialect.name == "sqlite":
            options["cached_statements"] = CACHED_STATEMENTS

    def keep_few_pages(connection: DBAPIConnection, _record: object) -> None:
        if isinstance(connection, AsyncAdapt_aiosqlite_connection):
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA soft_heap_limit = {DATABASE_CACHE}")
            cursor.close()

    event.listen(Engine, "do_connect", keep_few_statements)
    event.listen(Engine, "connect", keep_few_pages)


def keep_loop_running() -> None:
    """Let a changed automation into Prefect's memory without blocking its event loop.

    Prefect waits for that in the loop's own thread, under a lock that a coroutine of the same loop
    holds every five seconds: where both meet, the server never answers again.
    """
    from prefect.server.events.models import automations

    pending = set[asyncio.Task[None]]()  # the loop itself holds a task weakly

    def start(change: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(change)
        pending.add(task)
        task.add_done_callback(pending.discard)

    setattr(automations, "run_coro_as_sync", start)  # noqa: B010 - it exports none of its own


class LoginLinks:
    """Links that log one browser in, each valid once and for ``LINK_S`` seconds."""

    def __init__(self, password: str) -> None:
        self._password = password
        self._expiry: dict[str, float] = {}  # by token, on the monotonic clock

    async def create(self, request: Request) -> Response:
        """Answer with the path of a new link, on a route of Prefect's API, for the password."""
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


def create_guarded_app(reports: Path, names: Collection[str] = ()) -> ASGIApp:
    """Return Prefect's application behind the guard, with the routes of login links and of the
    report folders below ``reports``; ``names``: see ``refusal``.

    Raises UserError where Prefect's settings disable a defence.
    """
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    password = settings.api.auth_string
    if password is None or not settings.api.csrf_protection_enabled:
        raise UserError(
            "this server starts with a password and CSRF protection only; `make up` sets both, and"
            " elsewhere set PREFECT_SERVER_API_AUTH_STRING to user:password and"
            " PREFECT_SERVER_CSRF_PROTECTION_ENABLED=true"
        )
    app: Any = create_app(final=True)
    links = LoginLinks(password.get_secret_value())
    app.api_app.router.routes.insert(0, Route("/login-links", links.create, methods=["POST"]))
    login = Route("/login/{token}", links.redeem)
    login.methods = {"GET"}  # not HEAD, by which programs look at links, as chats do
    app.router.routes.insert(0, login)
    ui = next(route.app for route in app.router.routes if route.name == "ui")
    for each in (app, ui):
        kept = [r for r in each.router.routes if getattr(r, "path", "") not in DESCRIPTIONS]
        each.router.routes[:] = kept
    app.router.routes[:0] = ReportFiles(reports).routes()
    return Guard(app, names)


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal ends it; return 2 where it may not start, and 1 where it could not."""
    for name, value in BATCHED.items():
        os.environ.setdefault(name, value)
    import uvicorn
    from prefect.settings import get_current_settings

    options = _parse(arguments)
    settings = get_current_settings().server
    try:
        if options.listen not in LOOPBACK and not options.name:
            raise UserError(
                f"--listen {options.listen} is open to other machines and no --name says how they"
                " call this server, so it would refuse them all; give --name HOST, or leave"
                " --listen out"
            )
        bound_database_memory()
        keep_loop_running()
        app = create_guarded_app(options.reports, [name.lower() for name in options.name])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    config = uvicorn.Config(
        app,
        host=options.listen,
        port=options.port,
        proxy_headers=False,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )
    server = uvicorn.Server(config)
    with suppress(KeyboardInterrupt):
        server.run(sockets=None if options.fd is None else [socket.socket(fileno=options.fd)])
    return 0 if server.started else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flows.server", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fd", type=int, help="a socket that listens there already")
    parser.add_argument("--reports", type=Path, required=True, help="folder of report folders")
    parser.add_argument(
        "--listen", default=LOOPBACK[0], metavar="ADDRESS", help="address (default: %(default)s)"
    )
    parser.add_argument(
        "--name", action="append", default=[], metavar="HOST", help="what else it is called by"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Reports and their pictures over HTTP, for a browser that cannot send the server's password with
the request of a picture: the path is the secret (``report_folder`` in rlcore/results/folders.py).

Files have one form of address, ``/reports/<folder>/<file>``. Everything else below ``/reports`` is
answered alike, so that nobody learns what there is.
"""

import os
import re
import stat
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

PREFIX = "/reports"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
}
HEADERS = {
    "Cache-Control": "no-store",  # pictures too: they change while a run is under way
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_FOLDER = re.compile(r"[^./\\\0][^/\\\0]*-[0-9a-f]{32}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class ReportFiles:
    """ASGI application that serves the files of the report folders below ``folder``, and no
    others; ``folder`` need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def routes(self) -> list[BaseRoute]:
        """Return the routes of all that begins with ``PREFIX``."""
        return [Route(path, self) for path in (PREFIX, PREFIX + "/{rest:path}")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self._answer(scope))(scope, receive, send)

    async def _answer(self, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            allowed = HEADERS | {"Allow": "GET, HEAD"}
            return PlainTextResponse("Method Not Allowed\n", status_code=405, headers=allowed)
        folder, _, name = scope["path"].removeprefix(f"{PREFIX}/").partition("/")
        content, suffix = None, Path(name).suffix
        if _FOLDER.fullmatch(folder) and _FILE.fullmatch(name) and suffix in MEDIA_TYPES:
            content = await run_in_threadpool(_read, self._folder, folder, name)
        if content is None:
            return PlainTextResponse("Not Found\n", status_code=404, headers=HEADERS)
        body = b"" if scope["method"] == "HEAD" else content
        headers = HEADERS | {"Content-Length": str(len(content))}
        return Response(body, media_type=MEDIA_TYPES[suffix], headers=headers)


def _read(reports: Path, folder: str, name: str) -> bytes | None:
    """Return the content of a regular file of a folder; None for anything else. Symbolic links are
    not followed: one may lead out."""
    opened = list[int]()
    try:
        opened.append(os.open(reports, os.O_RDONLY | os.O_DIRECTORY))
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        opened.append(os.open(folder, flags, dir_fd=opened[-1]))
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would wait for its writer
        opened.append(os.open(name, flags, dir_fd=opened[-1]))
        if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
            return None
        with os.fdopen(opened[-1], "rb", closefd=False) as file:
            return file.read()
    except OSError:
        return None
    finally:
        for handle in opened:
            os.close(handle)

"""What the server hands out of the folders of reports, and what it does not."""

import http.client
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flows.report_files import HEADERS
from tests.conftest import HOME, REPORTS

pytestmark = pytest.mark.timeout(120)
SECRET = b"not for a browser"
Answer = tuple[int, http.client.HTTPMessage, bytes]


def _call(server: str, path: str, method: str = "GET", **headers: str) -> Answer:
    """Send exactly ``path``, which a browser or a library would tidy up first."""
    place = urlsplit(server)
    connection = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=300)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": f"127.0.0.1:{place.port}", **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    reply = connection.getresponse()
    return reply.status, reply.headers, reply.read()


@pytest.fixture(scope="module")
def folder(prefect_server: str) -> Iterator[Path]:
    """A report folder of the tests' server, with files that it must not hand out."""
    del prefect_server
    made = REPORTS / f"quickstart-0123abcd-{secrets.token_hex(16)}"
    made.mkdir(parents=True)
    for name, content in {
        "index.html": "<p>a report \u2713</p>".encode(),
        "curves.svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        "curves.png": b"\x89PNG",
        "report.json": b"{}",
        ".hidden.html": SECRET,
        "notes.txt": SECRET,
        "page.html.bak": SECRET,
    }.items():
        (made / name).write_bytes(content)
    (made / "below.html").mkdir()
    (made / "below.html" / "index.html").write_bytes(SECRET)
    (HOME / "secret.html").write_bytes(SECRET)
    (REPORTS / "loose.html").write_bytes(SECRET)
    (made / "out.html").symlink_to(HOME / "secret.html")
    os.mkfifo(made / "pipe.html")
    outside = HOME / ("elsewhere-" + "a" * 32)
    outside.mkdir()
    (outside / "index.html").write_bytes(SECRET)
    (REPORTS / outside.name).symlink_to(outside)
    yield made
    (REPORTS / outside.name).unlink()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("index.html", "text/html; charset=utf-8"),
        ("curves.svg", "image/svg+xml"),
        ("curves.png", "image/png"),
        ("report.json", "application/json"),
    ],
)
def test_a_file_is_read_without_a_password_and_runs_nothing(
    prefect_server: str, folder: Path, name: str, kind: str
) -> None:
    """A picture's request cannot carry one; a script in a picture must not run either."""
    status, headers, body = _call(prefect_server, f"/reports/{folder.name}/{name}")
    assert status == 200
    assert body == (folder / name).read_bytes()
    assert headers["Content-Type"] == kind
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Content-Security-Policy"].startswith("sandbox; default-src 'none';")
    assert "script" not in headers["Content-Security-Policy"]
    assert headers["Set-Cookie"] is None
    status, headers, body = _call(prefect_server, f"/reports/{folder.name}/{name}", "HEAD")
    assert (status, body) == (200, b"")
    assert headers["Content-Length"] == str((folder / name).stat().st_size)


@pytest.mark.parametrize(
    "path",
    [
        "/reports",
        "/reports/",
        "/reports/loose.html",
        "/reports//index.html",
        "/reports/{name}",
        "/reports/{name}/",
        "/reports/{name}//index.html",
        "/reports/{name}/none.html",
        "/reports/{name}/index",
        "/reports/{name}/.hidden.html",
        "/reports/{name}/notes.txt",
        "/reports/{name}/page.html.bak",
        "/reports/{name}/below.html",
        "/reports/{name}/below.html/index.html",
        "/reports/{name}/out.html",
        "/reports/{name}/pipe.html",
        "/reports/{name}/../{name}/index.html",
        "/reports/{name}/../loose.html",
        "/reports/{name}/../../secret.html",
        "/reports/{name}/..%2f..%2fsecret.html",
        "/reports/{name}/%2e%2e/%2e%2e/secret.html",
        "/reports/{name}/..%5c..%5csecret.html",
        "/reports/%2e%2e/secret.html",
        "/reports/{name}%2findex.html%00.html",
        "/reports/{name}/index.html%00",
        "/reports/{name}/index.html%0a",
        "/reports/{guessed}/index.html",
        "/reports/{short}/index.html",
        "/reports/{outside}/index.html",
        "/reports/{upper}/index.html",
    ],
)
def test_everything_else_is_answered_alike(prefect_server: str, folder: Path, path: str) -> None:
    """Neither what is outside the folder, nor which paths there are, nor a listing."""
    where = path.format(
        name=folder.name,
        guessed=f"quickstart-0123abcd-{'0' * 32}",
        short=folder.name[:-1],
        outside="elsewhere-" + "a" * 32,
        upper=folder.name.upper(),
    )
    status, headers, body = _call(prefect_server, where)
    assert (status, body) == (404, b"Not Found\n")
    assert {name: headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_reports_are_only_read(prefect_server: str, folder: Path, method: str) -> None:
    there = _call(prefect_server, f"/reports/{folder.name}/index.html", method)
    absent = _call(prefect_server, "/reports/none", method)
    assert there[0] in (403, 405), "403 is that of Prefect for a change without a CSRF token"
    assert (there[0], there[2]) == (absent[0], absent[2]), "whether a path exists shows"


def test_the_guard_stands_before_reports(prefect_server: str, folder: Path) -> None:
    """A page of another origin that knows the path still reads nothing."""
    path = f"/reports/{folder.name}/index.html"
    assert _call(prefect_server, path, Origin="http://evil.example")[0] == 403
    assert _call(prefect_server, path, Host="evil.example")[0] == 403
    assert _call(prefect_server, path, Origin="null")[0] == 403

"""Whom the server answers, by the headers of a request alone."""

import base64

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from flows.server import refusal
from tests.flows.prefect_calls import Server, called

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def server(prefect_server: str) -> Server:
    return called(prefect_server)


@pytest.mark.parametrize(
    "given",
    [
        "Basic " + base64.b64encode("admin:é".encode()).decode(),
        "Basic " + base64.b64encode(b"admin:\xff\xfe").decode(),
        "Basic " + base64.b64encode(b"admin:guess").decode() + " x",
        "Basic é",
        "Basic =",
        "Bearer YWRtaW46Z3Vlc3M=",
        "Basic",
        "",
    ],
)
def test_what_cannot_be_a_password_is_unauthorized(server: Server, given: str) -> None:
    """And not a traceback of the server."""
    assert server.call("GET", "/api/version", Authorization=given)[0] == 401


@pytest.mark.parametrize(
    "first",
    ['{"type": "auth", "token": "admin:\\u00e9"}', '{"type": "auth", "token": 5}', "[]", "x"],
)
@pytest.mark.parametrize("path", ["/api/events/out", "/api/logs/out"])
def test_a_websocket_is_closed_at_what_cannot_be_a_password(
    server: Server, path: str, first: str
) -> None:
    url = f"ws://127.0.0.1:{server.port}{path}"
    own = f"http://127.0.0.1:{server.port}"
    with connect(url, origin=own, subprotocols=["prefect"]) as socket_:  # pyright: ignore
        socket_.send(first)
        with pytest.raises(ConnectionClosed) as closed:
            socket_.recv(timeout=300)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


@pytest.mark.parametrize(
    ("site", "mode", "passes"),
    [
        ("cross-site", "no-cors", False),
        ("cross-site", "cors", False),
        ("same-site", "no-cors", False),
        ("cross-site", "navigate", True),
        ("same-origin", "cors", True),
        ("none", "navigate", True),
    ],
)
def test_what_a_page_of_another_site_fetches_is_refused(
    server: Server, site: str, mode: str, passes: bool
) -> None:
    """A picture's address there has no Origin; a link to this server may be followed."""
    sent = {"Authorization": None, "Sec_Fetch_Site": site, "Sec_Fetch_Mode": mode}
    assert (server.call("GET", "/ui-settings", **sent)[0] == 200) == passes


@pytest.mark.parametrize(
    ("host", "origin", "passes"),
    [
        ("localhost:4200", None, True),
        ("LOCALHOST", None, True),
        ("[::1]:4200", "http://[::1]:4200", True),
        ("127.0.0.1:4200", "http://127.0.0.1:4200", True),
        ("127.0.0.1:4200", "https://127.0.0.1:4200", False),
        ("127.0.0.1:4200", "http://localhost:4200", False),
        ("127.0.0.1:x", None, False),
        ("[", None, False),
        ("", None, False),
        ("localhost/../x", None, False),
        ("0.0.0.0:4200", None, False),
    ],
)
def test_what_the_guard_accepts(host: str, origin: str | None, passes: bool) -> None:
    headers = [(b"host", host.encode())]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    assert (refusal(headers) is None) == passes
    assert refusal([*headers, (b"host", b"localhost")]) is not None, "two Host headers"


@pytest.mark.parametrize(
    ("host", "origin", "passes"),
    [
        ("server:4200", None, True),
        ("RL.example", "https://rl.example", True),
        ("rl.example", "http://rl.example", True),
        ("localhost:4200", "http://localhost:4200", True),
        ("localhost:4200", "https://localhost:4200", False),
        ("rl.example", "https://evil.example", False),
        ("rl.example.evil.example", None, False),
        ("evil.example", None, False),
    ],
)
def test_a_shared_server_answers_to_its_own_names(
    host: str, origin: str | None, passes: bool
) -> None:
    headers = [(b"host", host.encode())]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    assert (refusal(headers, ["server", "rl.example"]) is None) == passes

"""The server against web pages and other programs: each defence alone stops the attack."""

import asyncio
import base64
import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from flows.commands.up import login_link
from flows.deploy import PASSED_ON
from flows.local import Site, client_settings, password, server_settings
from flows.server import LINK_S, LoginLinks, create_guarded_app, main
from schemas.errors import UserError
from tests.flows.prefect_calls import Server, called

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def server(prefect_server: str) -> Server:
    return called(prefect_server)


MEASURED = {**os.environ, "MALLOC_ARENA_MAX": "1"}
POOL = {"name": "attack", "type": "process"}


def _pools(server: Server) -> list[str]:
    status, _, text = server.call("POST", "/api/work_pools/filter", {}, **server.csrf())
    assert status == 200, text
    return [pool["name"] for pool in json.loads(text)]


def test_task_runs_are_recorded_many_at_a_time(server: Server) -> None:
    """One at a time they cost the server twice the processor time, beside the learner."""
    status, _, text = server.call("GET", "/api/admin/settings")
    assert status == 200, text
    services = json.loads(text)["server"]["services"]
    assert services["task_run_recorder"]["batch_size"] == 200
    assert services["task_run_recorder"]["flush_interval"] == 1
    assert services["event_persister"]["batch_size"] == 500


def test_the_database_leaves_little_memory_in_the_server(tmp_path: Path) -> None:
    """As Prefect opens it, statements and pages stay, tens of MiB for each connection."""
    program = (sys.executable, "-m", "tests.flows.filled_database")
    left = {
        how: int(subprocess.check_output([*program, tmp_path / f"{how}.db", how], env=MEASURED))
        for how in ("bounded", "as-prefect-does")
    }
    assert left["bounded"] < left["as-prefect-does"] / 2


CHANGED_MEANWHILE = """
import asyncio, sys
from prefect.server.events.actions import DoNothing
from prefect.server.database import provide_database_interface
from prefect.server.events.models.automations import create_automation
from prefect.server.events.schemas.automations import Automation, EventTrigger
from prefect.server.events import triggers
from flows.server import keep_loop_running

async def look_for_changes(looks):
    async with triggers._automations_lock():  # as Prefect does every five seconds
        looks.set()
        await asyncio.sleep(0.5)

async def main():
    db, looks = provide_database_interface(), asyncio.Event()
    await db.create_db()
    looking = asyncio.create_task(look_for_changes(looks))
    await looks.wait()
    trigger = EventTrigger(posture="Reactive", expect={"a"}, threshold=1, within=10)
    automation = Automation(name="a", trigger=trigger, actions=[DoNothing()])
    async with db.session_context(begin_transaction=True) as session:
        made = await create_automation(session=session, automation=automation)
    print("committed", flush=True)
    await looking
    while made.id not in triggers.automations_by_id:
        await asyncio.sleep(0.1)
    print("known", flush=True)

keep_loop_running()
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_automation_that_changes_while_prefect_looks_for_changes_stops_no_loop(
    tmp_path: Path,
) -> None:
    """Without the mend this hangs, as the server of whoever calls ``up`` at that moment does."""
    home = {**os.environ, "PREFECT_HOME": str(tmp_path)}
    for name in ("PREFECT_API_URL", "PREFECT_SERVER_DATABASE_CONNECTION_URL"):
        home.pop(name, None)
    program = [sys.executable, "-c", CHANGED_MEANWHILE]
    told = subprocess.run(program, env=home, stdout=subprocess.PIPE, timeout=240, check=True)
    assert told.stdout.split() == [b"committed", b"known"]


def test_a_client_with_the_password_can_change_things(server: Server) -> None:
    """Without this the refusals below could be those of a wrong request."""
    status, _, text = server.call(
        "POST", "/api/work_pools/", {**POOL, "name": "ours"}, **server.csrf()
    )
    assert status == 201, text
    assert "ours" in _pools(server)


@pytest.mark.parametrize(
    ("taken_away", "status"),
    [
        ({"Authorization": None}, 401),
        ({"Authorization": "Basic " + base64.b64encode(b"admin:guess").decode()}, 401),
        ({"Prefect_Csrf_Token": None}, 403),
        ({"Prefect_Csrf_Token": "guess"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Host": "user@localhost"}, 403),
        ({"Host": None}, 403),
    ],
    ids=str,
)
def test_each_defence_holds_alone(
    server: Server, taken_away: dict[str, str | None], status: int
) -> None:
    headers = server.csrf() | taken_away
    got, answer, text = server.call("POST", "/api/work_pools/", POOL, **headers)
    if taken_away == {"Host": None}:  # HTTP/1.1 without one is refused even earlier
        assert got in (400, status)
    else:
        assert got == status, text
    assert answer["Access-Control-Allow-Origin"] is None or "Prefect_Csrf_Token" in taken_away
    assert "attack" not in _pools(server)


def test_no_other_page_is_allowed_to_read(server: Server) -> None:
    status, headers, _ = server.call(
        "OPTIONS",
        "/api/flow_runs/",
        Origin="http://evil.example",
        Access_Control_Request_Method="POST",
    )
    assert status == 403
    assert headers["Access-Control-Allow-Origin"] is None
    _, headers, _ = server.call("GET", "/api/version", Origin=f"http://127.0.0.1:{server.port}")
    assert headers["Access-Control-Allow-Origin"] != "*"


def test_a_csrf_token_needs_the_password(server: Server) -> None:
    path = "/api/csrf-token?client=attack"
    assert server.call("GET", path)[0] == 200
    assert server.call("GET", path, Authorization=None)[0] == 401


@pytest.mark.parametrize("path", ["/api/events/in", "/api/events/out"])
def test_websockets_are_closed_to_other_pages(server: Server, path: str) -> None:
    """CORS does not cover them."""
    url = f"ws://127.0.0.1:{server.port}{path}"
    with pytest.raises(InvalidStatus) as refused:
        connect(url, origin="http://evil.example", subprotocols=["prefect"])  # pyright: ignore
    assert refused.value.response.status_code == 403
    own = f"http://127.0.0.1:{server.port}"
    with connect(url, origin=own, subprotocols=["prefect"]) as socket_:  # pyright: ignore
        socket_.send(json.dumps({"type": "auth", "token": "admin:guess"}))
        with pytest.raises(ConnectionClosed, match="Invalid token"):
            socket_.recv(timeout=300)


@pytest.fixture(scope="module")
def forwarded(server: Server) -> Iterator[int]:
    """Another port whose bytes go to the server, as by ``ssh -L``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pump(source: socket.socket, target: socket.socket) -> None:
            try:
                while data := source.recv(65536):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                pass

        def serve() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                far = socket.create_connection(("127.0.0.1", server.port))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_the_ui_works_as_localhost_and_through_a_forwarded_port(
    server: Server, forwarded: int, name: str
) -> None:
    """Its page calls the address that /ui-settings gives, with its own origin."""
    page = Server(forwarded, server.authorization)
    at = {"Host": f"{name}:{forwarded}"}
    status, _, text = page.call("GET", "/", Authorization=None, **at)
    assert status == 200
    assert "<script" in text
    status, _, text = page.call("GET", "/ui-settings", Authorization=None, **at)
    ui = json.loads(text)
    assert ui["auth"] == "BASIC"
    assert ui["csrf_enabled"] is True
    assert ui["api_url"].startswith("/"), "the page would call another origin than its own"
    status, _, text = page.call(
        "POST",
        ui["api_url"] + "/flow_runs/filter",
        {},
        Origin=f"http://{name}:{forwarded}",
        **at,
        **server.csrf(),
    )
    assert status == 200, text


def test_a_login_link_works_once(server: Server) -> None:
    link = urlsplit(login_link(Site(Path(os.environ["PREFECT_HOME"]), server.port)))
    assert link.netloc == f"127.0.0.1:{server.port}"
    status, headers, text = server.call("GET", link.path, Authorization=None)
    assert status == 200
    assert headers["Cache-Control"] == "no-store"
    stored = re.search(r"'prefect-password', \"([^\"]+)\"", text)
    assert stored is not None
    assert "Basic " + stored[1] == server.authorization
    status, _, text = server.call("GET", link.path, Authorization=None)
    assert status == 410
    assert "rl-pipeline open" in text


def test_looking_at_a_login_link_does_not_use_it(server: Server) -> None:
    link = urlsplit(login_link(Site(Path(os.environ["PREFECT_HOME"]), server.port)))
    for method in ("HEAD", "OPTIONS", "HEAD"):
        server.call(method, link.path, Authorization=None)
    assert server.call("GET", link.path, Authorization=None)[0] == 200


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc", "/api/openapi.json"])
def test_no_stranger_makes_the_server_describe_its_api(server: Server, path: str) -> None:
    """The description costs a second of the process that records what the runs do."""
    status, _, text = server.call("GET", path, Authorization=None)
    assert status == 401 if path.startswith("/api/") else '"paths"' not in text
    assert "swagger" not in text.lower()
    assert '"paths"' in server.call("GET", "/api/openapi.json")[2]


def test_only_a_client_with_the_password_gets_a_login_link(server: Server) -> None:
    for headers in ({"Authorization": None}, {"Prefect_Csrf_Token": None}):
        status, _, text = server.call("POST", "/api/login-links", **(server.csrf() | headers))
        assert status in (401, 403), text
    assert server.call("GET", "/login/guess", Authorization=None)[0] == 410


def test_an_old_login_link_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette.requests import Request

    links = LoginLinks("admin:secret")
    created = asyncio.run(links.create(Request({"type": "http", "headers": []})))
    token = json.loads(bytes(created.body))["path"].rsplit("/", 1)[1]
    later = time.monotonic() + LINK_S + 1
    monkeypatch.setattr("flows.server.time.monotonic", lambda: later)
    request = Request({"type": "http", "headers": [], "path_params": {"token": token}})
    answer = asyncio.run(links.redeem(request))
    assert answer.status_code == 410
    assert b"secret" not in bytes(answer.body)


def test_no_server_starts_without_a_password(
    prefect_server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This process has a client's settings only."""
    with pytest.raises(UserError, match="password"):
        create_guarded_app(tmp_path)
    assert main(["--port", "1", "--reports", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: this server starts with a password and CSRF protection only")
    assert "PREFECT_SERVER_API_AUTH_STRING" in error


def test_no_server_opens_to_others_without_a_name(
    prefect_server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--port", "1", "--reports", str(tmp_path), "--listen", "0.0.0.0"]) == 2
    assert "0.0.0.0 is open to other machines and no --name says" in capsys.readouterr().err


def test_the_password_is_kept_from_deployments_and_other_users(tmp_path: Path) -> None:
    secret = password(tmp_path)
    assert secret == password(tmp_path), "a second bring-up would be locked out"
    assert stat.S_IMODE((tmp_path / "password").stat().st_mode) == 0o600
    (holds,) = [name for name, value in client_settings(tmp_path, 1).items() if value == secret]
    assert holds == "PREFECT_API_AUTH_STRING"
    assert holds not in PASSED_ON, "a deployment stores these"
    assert server_settings(tmp_path, 1)["PREFECT_SERVER_API_AUTH_STRING"] == secret
    assert password(tmp_path / "other") != secret

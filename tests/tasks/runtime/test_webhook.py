"""Alerts reach a real receiver, from a process of their own, and a bad one delays nothing."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from schemas.errors import UserError
from tasks.runtime import webhook
from tasks.runtime.webhook import LEAST, URL, AlertLevel, deliver, log_path, post

pytestmark = pytest.mark.timeout(60)


class Receiver:
    """A webhook on loopback. ``answer(n)``: the status of the n-th post, None to hang."""

    def __init__(self, answer: Callable[[int], int | None] = lambda number: 200) -> None:
        self.bodies: list[dict[str, str]] = []
        self.authorizations: list[str | None] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.authorizations.append(self.headers["Authorization"])
                receiver.bodies.append(json.loads(body))
                status = answer(len(receiver.bodies))
                if status is None:
                    time.sleep(30)
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook/a1b2c3d4e5"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def wait_for(self, count: int, limit_s: float = 20.0) -> list[dict[str, str]]:
        until = time.monotonic() + limit_s
        while len(self.bodies) < count and time.monotonic() < until:
            time.sleep(0.05)
        return self.bodies

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Receiver]:
    one = Receiver()
    monkeypatch.setenv(URL, one.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield one
    one.close()


def test_an_alert_is_posted_with_its_fields(receiver: Receiver) -> None:
    assert post("rl-pipeline.run.failed", AlertLevel.ERROR, "it failed", {"recipe": "gsm8k-grpo"})
    (body,) = receiver.wait_for(1)
    assert body == {
        "text": "it failed",
        "event": "rl-pipeline.run.failed",
        "level": "error",
        "recipe": "gsm8k-grpo",
    }


def test_only_what_is_asked_for_is_posted(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not post("a", AlertLevel.INFO, "it is over", {})
    monkeypatch.setenv(LEAST, "error")
    assert not post("b", AlertLevel.WARNING, "look", {})
    monkeypatch.setenv(LEAST, "info")
    assert post("c", AlertLevel.INFO, "it is over", {})
    monkeypatch.delenv(URL)
    assert not post("d", AlertLevel.ERROR, "nobody is asked", {})
    assert [body["event"] for body in receiver.wait_for(1)] == ["c"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (LEAST, "warnings", "did you mean 'warning'"),
        (URL, "hooks.example.com/a1b2c3d4e5", "begins with https://"),
    ],
)
def test_a_setting_that_is_none_is_refused_and_not_repeated(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=words) as refused:
        post("a", AlertLevel.ERROR, "text", {})
    assert "a1b2c3d4e5" not in str(refused.value)


def test_a_receiver_that_fails_in_passing_is_asked_again() -> None:
    one = Receiver(lambda number: 503 if number < 3 else 200)
    try:
        assert deliver(one.url, b'{"event": "a"}') == ""
        assert len(one.bodies) == 3
    finally:
        one.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://[::1", "InvalidURL"),
        (f"https://{'a' * 70}.example/hook", "UnicodeError"),
        ("https://..example/hook", "UnicodeError"),
    ],
)
def test_a_url_that_leads_nowhere_is_given_up_in_a_word(url: str, said: str) -> None:
    """Without a line in the log nobody learns that alerts are not delivered."""
    assert deliver(url, b'{"event": "a"}') == said


def test_user_and_password_of_a_url_are_sent_as_such() -> None:
    one = Receiver()
    try:
        assert deliver(one.url.replace("//", "//me:hunter22@"), b'{"event": "a"}') == ""
        assert one.authorizations == ["Basic bWU6aHVudGVyMjI="]
    finally:
        one.close()


def test_a_receiver_that_refuses_is_not_asked_again_and_the_url_is_in_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = Receiver(lambda number: 404)
    monkeypatch.setenv(URL, one.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        post("rl-pipeline.run.failed", AlertLevel.ERROR, f"it asked {one.url}", {})
        until = time.monotonic() + 300
        while not log_path().exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert "rl-pipeline.run.failed was not delivered: HTTP 404" in log_path().read_text()
        assert [body["text"] for body in one.bodies] == ["it asked ***"]
        kept = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
        assert not any("a1b2c3d4e5" in text for text in kept)
    finally:
        one.close()


def test_a_receiver_that_hangs_delays_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = Receiver(lambda number: None)
    monkeypatch.setenv(URL, one.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        begun = time.monotonic()
        assert post("a", AlertLevel.ERROR, "x" * 100_000, {"long": "y" * 100_000})
        assert time.monotonic() - begun < 5.0, "it is not waited for"
        (body,) = one.wait_for(1)
        assert (len(body["text"]), len(body["long"])) == (webhook.LONGEST, webhook.LONGEST)
    finally:
        one.close()

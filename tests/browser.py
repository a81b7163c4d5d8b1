"""A headless Chromium, driven over its DevTools protocol: opens a page, asks it, takes a picture.

A page may be asked anything that JavaScript answers. Needs the program ``chromium``.
"""

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.sync.connection import Connection

START_S = 60.0
ANSWER_S = 30.0
POLL_S = 0.25
PORT_FILE = "DevToolsActivePort"  # which Chromium writes into its profile
WIDTH, HEIGHT = 1400, 1000  # pixels
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    "--remote-debugging-port=0",
)


def program() -> str:
    """Return the path of the browser. Raises AssertionError with the remedy where there is none."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    assert found is not None, "this test needs Chromium: apt-get install chromium"
    return found


class Browser:
    """One tab. Made by ``opened``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.call("Page.enable")
        self.call("Runtime.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to one command of the DevTools protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        self._connection.send(json.dumps(message))
        while True:
            answer = json.loads(self._connection.recv(ANSWER_S))
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, url: str) -> None:
        """Navigate to ``url``; what the page then loads is to be waited for (``wait``)."""
        self.call("Page.navigate", url=url)

    def sign_in(self, base: str, password: str) -> None:
        """Give Prefect's UI at ``base`` the password of its server."""
        secret = base64.b64encode(password.strip().encode()).decode()
        self.open(f"{base}/login")
        self.wait(f"location.origin === '{base}' && document.readyState === 'complete'")
        self.ask(f"localStorage.setItem('prefect-password', '{secret}')")

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, *, timeout_s: float = 180.0) -> Any:
        """Return the value of ``expression`` once it is true.

        Raises AssertionError with the page's text where it does not become so.
        """
        deadline = time.monotonic() + timeout_s
        while not (value := self.ask(expression)):
            if time.monotonic() > deadline:
                text = self.ask("document.body ? document.body.innerText : ''")
                raise AssertionError(f"{expression} did not become true; the page:\n{text[-3000:]}")
            time.sleep(POLL_S)
        return value

    def picture(self, path: Path, *, width: int = WIDTH, height: int = HEIGHT) -> None:
        """Write what the page shows, so many pixels of it, as a PNG."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        time.sleep(POLL_S)
        shot = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def opened(profile: Path) -> Iterator[Browser]:
    """Yield a browser with its files in ``profile``; it ends with the context."""
    profile.mkdir(parents=True, exist_ok=True)
    (profile / PORT_FILE).unlink(missing_ok=True)
    command = [program(), *OPTIONS, f"--user-data-dir={profile}"]
    command += [f"--window-size={WIDTH},{HEIGHT}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            with connect(_address(profile, process), max_size=None) as connection:
                yield Browser(connection)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(profile: Path, process: "subprocess.Popen[bytes]") -> str:
    """Return the address of the first tab, once the browser has one."""
    deadline, file = time.monotonic() + START_S, profile / PORT_FILE
    while time.monotonic() < deadline:
        assert process.poll() is None, "chromium did not start"
        if file.is_file() and (port := file.read_text().partition("\n")[0]):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as reply:
                tabs = [tab for tab in json.load(reply) if tab["type"] == "page"]
            if tabs:
                return tabs[0]["webSocketDebuggerUrl"]
        time.sleep(POLL_S)
    raise AssertionError(f"chromium had no tab after {START_S:.0f} s")

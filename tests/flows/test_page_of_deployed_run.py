"""A deployed run's page in headless Chromium: while it goes, cancelled, and after a kill -9."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows import services
from flows.flow_runs import executing
from flows.local import ROOT, client_settings, down, password
from tasks.runtime.webhook import LEAST, URL
from tests.browser import Browser, opened
from tests.flows.small_run import INLINE, SMALL
from tests.flows.test_browser import DRAWN, forwarded
from tests.flows.test_local import UP, environment, python
from tests.screenshots import pictures
from tests.tasks.runtime.test_webhook import Receiver

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

KEYS = ("quickstart-run", "quickstart-lineage", "quickstart-metrics-rl")
WIDEST = 1400  # pixels, of the browser too
STOP = """
import sys
from pathlib import Path
from flows import local
local.HOME = Path(sys.argv[1])
from flows.cli import main
sys.exit(main(["stop", sys.argv[2]]))
"""


@dataclass
class _Site:
    home: Path
    port: int
    store: Path

    def start(self, seed: int) -> UUID:
        """Start a run of the deployment that would continue for hours; return its id."""
        overrides = {**SMALL, **INLINE, "rl.iterations": 5000, "seed": seed}
        overrides |= {"store": str(self.store)}
        command = [sys.executable, "-m", "prefect", "deployment", "run", "rl-pipeline/quickstart"]
        done = subprocess.run(
            [*command, "-p", f"overrides={json.dumps(overrides)}"],
            env={**environment(), **client_settings(self.home, self.port)},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        return UUID(done.stdout.partition("UUID: ")[2].split()[0])

    def shown(self, client: SyncPrefectClient, run: UUID) -> dict[str, Any]:
        """Return what is on the run's page, by key."""
        only = ArtifactFilterFlowRunId.model_validate({"any_": [run]})
        found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=only))
        return {artifact.key: artifact for artifact in found if artifact.key}

    def wait(self, client: SyncPrefectClient, run: UUID, key: str, text: str) -> None:
        deadline = time.monotonic() + 240
        while True:
            page = self.shown(client, run)
            if key in page and text in str(page[key].data):
                return
            state = client.read_flow_run(run).state
            assert time.monotonic() < deadline, f"{key} without {text!r}: {page}, {state}"
            time.sleep(1)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    """A webhook on loopback, which the worker is told of."""
    one = Receiver()
    yield one
    one.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[_Site]:
    """A server with a worker, started from nothing."""
    folder = tmp_path_factory.mktemp("deployed")
    home = folder / ".prefect"
    try:
        extra = {"PYTHONPATH": str(ROOT), URL: receiver.url, LEAST: "error"}
        started = python(UP, str(home), str(folder / ".env"), extra=extra)
        assert started.returncode == 0, started.stderr
        server = services.find(home, "server")
        assert server is not None
        assert server.port is not None
        yield _Site(home, server.port, folder / "store")
    finally:
        down(home)


@pytest.fixture
def client(site: _Site) -> Iterator[SyncPrefectClient]:
    """A client of this server."""
    url = client_settings(site.home, site.port)["PREFECT_API_URL"]
    own: Any = {PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: password(site.home)}
    with temporary_settings(own), get_client(sync_client=True) as connected:
        yield connected


@pytest.mark.parametrize("end", ["stop", "SIGKILL"])
def test_a_page_tells_what_a_run_had_and_why_it_ended(
    end: str, site: _Site, client: SyncPrefectClient, receiver: Receiver, tmp_path: Path
) -> None:
    """A cancelled run "did not produce any artifacts", and one under way had no curve; one that was
    killed was found out by looking."""
    receiver.bodies.clear()
    run = site.start(seed=len(end))
    folder = ROOT / "runs" / f"quickstart-{str(run)[:8]}"
    try:
        site.wait(client, run, "quickstart-metrics-rl", "critic/score/mean")
        with forwarded(site.port) as other, opened(tmp_path / "profile") as browser:
            page = _Page(browser, other, site.home, tmp_path)
            page.shows(site.shown(client, run), "quickstart-run", "running", "in the stage rl")
            if end == "stop":
                stopped = python(STOP, str(site.home), folder.name)
                assert "Cancelled: " in stopped.stdout, stopped.stdout + stopped.stderr
                words = ("cancelled", "Why it ended")
            else:
                pid = executing(client.read_flow_run(run))
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                words = ("crashed", "Why it ended", "-9")
            site.wait(client, run, "quickstart-run", "Why it ended")
            taken = {path.name for path in pictures(site.home, site.port, tmp_path)}
            assert {"rl-pipeline-page.png", "rl-pipeline-quickstart-run.png"} <= taken
            page.shows(site.shown(client, run), "quickstart-run", *words, "in the stage rl")
        crashes = [body["flow_run"] for body in receiver.wait_for(0 if end == "stop" else 1)]
        assert crashes == ([] if end == "stop" else [str(run)])
        secret = receiver.url.encode()
        for path in site.home.rglob("*"):
            assert not path.is_file() or secret not in path.read_bytes(), path
    finally:
        if (pid := executing(client.read_flow_run(run))) is not None:
            os.kill(pid, signal.SIGKILL)
        for left in (folder, *(ROOT / "runs" / "reports").glob(f"{folder.name}-*")):
            shutil.rmtree(left, ignore_errors=True)


@dataclass
class _Page:
    """The page of a run through the port that leads to the server's."""

    browser: Browser
    port: int
    home: Path
    pictures: Path

    def shows(self, artifacts: dict[str, Any], key: str, *words: str) -> None:
        """Check every artifact in both UIs: it fits, its pictures draw, its links lead somewhere;
        ``words`` stand in that of ``key``."""
        assert set(KEYS) <= set(artifacts)
        base = f"http://127.0.0.1:{self.port}"
        self.browser.sign_in(base, password(self.home))
        for ui in ("", "/v2"):
            for name, artifact in artifacts.items():
                self.browser.open(f"{base}{ui}/artifacts/artifact/{artifact.id}")
                self.browser.wait("document.querySelectorAll('h2').length > 0")
                self._fits(f"{ui.strip('/') or 'v1'}-{name}-{words[0]}")
                if "![" in str(artifact.data):
                    self.browser.wait(f"{DRAWN}.length === 1 && {DRAWN}[0].naturalWidth > 0")
                if name == key:
                    text = "document.body.innerText"
                    self.browser.wait(f"{list(words)}.every(word => {text}.includes(word))")
                    self._report_opens()

    def _fits(self, picture: str) -> None:
        ends = "[...document.querySelectorAll('table')].map(t => t.getBoundingClientRect().right)"
        assert [end for end in self.browser.ask(ends) if end > WIDEST] == [], picture
        self.browser.picture(self.pictures / f"{picture}.png")

    def _report_opens(self) -> None:
        link = "[...document.querySelectorAll('a')].find(a => /reports/.test(a.href)).href"
        answer = self.browser.ask(f"fetch({link}).then(reply => reply.status)")
        assert answer == 200, self.browser.ask(link)

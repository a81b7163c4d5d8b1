"""The page of a flow run in headless Chromium, in both UIs, also through a forwarded port."""

import re
import selectors
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import polars as pl
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.runtime import flow_run

from rlcore.report.facts import gather
from rlcore.report.write import parts, write_report
from tasks.run_page.page import keep_picture, show
from tests.browser import opened
from tests.conftest import HOME, REPORTS
from tests.rlcore.report.made import MadeRun

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
LAPTOP = 1280  # pixels
# The tables of which a part is seen by scrolling only.
CUT_OFF = """[...document.querySelectorAll('table')].filter(table => {
    let box = table.parentElement;
    while (box && box.scrollWidth <= box.clientWidth) box = box.parentElement;
    return box;
}).map(table => table.innerText)"""
DRAWN = "[...document.images].filter(i => /^.reports/.test(i.getAttribute('src')))"


@pytest.fixture(scope="module")
def published(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The ids of three artifacts of a run, by key."""
    del prefect_server
    made = MadeRun(tmp_path_factory.mktemp("page") / "runs")
    made.train(made.prepare(), iterations=3)
    facts = replace(gather(made.open()), eval_results=_evaluated())
    folder = REPORTS / f"{made.name}-{'0123abcd' * 4}"
    folder.mkdir(parents=True)
    write_report(made.open(), folder)

    @flow(name="page-test")
    def run() -> str:
        shown = parts(facts, folder, partial(keep_picture, folder))
        wanted = ("lineage", "metrics-rl", "evaluation")
        sections = [part for part in shown if part.key in wanted]
        show(UUID(str(flow_run.id)), made.open().recipe.name, sections)
        return str(flow_run.id)

    only = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId.model_validate({"any_": [run()]}))
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=only)
    return {artifact.key or "": str(artifact.id) for artifact in found}


def _evaluated() -> pl.DataFrame:
    """Three checkpoints on two parts of a test split, with the longest names that metrics have."""
    places = [("arithmetic", "test"), ("arithmetic", "test_steps"), ("all", "all")]
    names = ("greedy/acc", "sampled/avg@64", "sampled/pass@64", "greedy/response_length/clip_ratio")
    return pl.DataFrame(
        {
            "checkpoint": checkpoint,
            "data_source": source,
            "subset": subset,
            "metric": metric,
            "value": 0.75,
            "ci_low": 0.715,
            "ci_high": 0.785,
            "num_prompts": 1319,
            "num_samples": 1319,
        }
        for checkpoint in ("base", "sft", "rl")
        for source, subset in places
        for metric in names
    )


@contextmanager
def forwarded(port: int) -> Iterator[int]:
    """Yield another port of this machine that leads to ``port``, as ``ssh -L`` makes one."""

    class Pipe(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                socket.create_connection(("127.0.0.1", port)) as there,
                selectors.DefaultSelector() as ready,
            ):
                ready.register(self.request, selectors.EVENT_READ, there)
                ready.register(there, selectors.EVENT_READ, self.request)
                while True:
                    for key, _ in ready.select():
                        data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                        if not data:
                            return
                        key.data.sendall(data)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Pipe) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize("tunnel", [False, True])
@pytest.mark.parametrize("ui", ["", "/v2"])
def test_pictures_draw_and_links_lead_to_the_same_server(
    ui: str, tunnel: bool, published: dict[str, str], prefect_server: str, tmp_path: Path
) -> None:
    port = urlsplit(prefect_server).port or 0
    with forwarded(port) as other, opened(tmp_path / "profile") as browser:
        base = f"http://127.0.0.1:{other if tunnel else port}"
        browser.sign_in(base, (HOME / "password").read_text())
        browser.open(f"{base}{ui}/artifacts/artifact/{published['quickstart-metrics-rl']}")
        browser.wait(f"{DRAWN}.length === 1 && {DRAWN}[0].naturalWidth > 0")
        browser.picture(tmp_path / "metrics-rl.png")
        assert browser.ask(f"{DRAWN}[0].getBoundingClientRect().width") <= 846
        browser.open(f"{base}{ui}/artifacts/artifact/{published['quickstart-evaluation']}")
        browser.wait("document.querySelectorAll('table').length === 4")
        browser.picture(tmp_path / "evaluation.png", width=LAPTOP)
        assert browser.ask(CUT_OFF) == []
        browser.open(f"{base}{ui}/artifacts/artifact/{published['quickstart-lineage']}")
        browser.wait("document.body?.innerText.includes('Every artifact of it')")
        links = browser.ask("[...document.querySelectorAll('a')].map(a => a.href)")
        assert [link for link in links if re.match(rf"{base}/reports/.*/index.html", link)]
        assert [link for link in links if re.match(rf"{base}{ui}/runs/flow-run/", link)]

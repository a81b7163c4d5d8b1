"""Pictures of the pages that a team looks at: runs, evaluations and retraining in Prefect's UI.

python -m tests.screenshots [FOLDER] [--home .prefect]
    of the newest run of each flow on the server that ``rl-pipeline up`` started (``--home``: its
    folder, also that of another checkout, so that two versions can be laid side by side): the run's
    page, and each of its artifacts, 1,280 pixels wide, as PNG. Needs Chromium.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterStartTime,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows import services
from flows.local import HOME, client_settings, password
from flows.paths import ROOT
from tests.browser import opened

FOLDER = ROOT / "runs" / "screenshots"
WIDTH, HEIGHT = 1280, 1600  # pixels
NEWEST = 50  # runs, among which the newest of each flow is found
# Whether the page, which fetches what it shows piece by piece, has said the same for a second; its
# clocks run on.
SETTLED = """(() => {
    const text = (document.body?.innerText ?? '').replace(/[0-9]/g, ''), now = Date.now();
    if (window.seen !== text) { window.seen = text; window.since = now; }
    return text.length > 300 && now - window.since > 1000;
})()"""


def main(arguments: list[str] | None = None) -> int:
    """Take the pictures, print their paths, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.screenshots", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--home", type=Path, default=HOME, help="the folder .prefect of a checkout")
    options = parser.parse_args(arguments)
    server = services.find(options.home, "server")
    if server is None or server.port is None:
        print(f"no server of {options.home} is up: make up", file=sys.stderr)
        return 1
    options.folder.mkdir(parents=True, exist_ok=True)
    for path in pictures(options.home, server.port, options.folder):
        print(path)
    return 0


def pictures(home: Path, port: int, folder: Path) -> Iterator[Path]:
    """Yield the path of each picture, taken of the server at ``port`` whose folder is ``home``."""
    url = client_settings(home, port)["PREFECT_API_URL"]
    own: Any = {PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: password(home)}
    base = url.removesuffix("/api")
    with (
        temporary_settings(own),
        get_client(sync_client=True) as client,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,  # Chromium ends late
        opened(Path(profile)) as browser,
    ):
        browser.sign_in(base, password(home))
        for flow, run in _newest(client):
            pages = {"page": f"/runs/flow-run/{run.id}"}
            only = ArtifactFilterFlowRunId.model_validate({"any_": [run.id]})
            for artifact in client.read_artifacts(
                artifact_filter=ArtifactFilter(flow_run_id=only), limit=NEWEST
            ):
                pages[artifact.key or str(artifact.id)] = f"/artifacts/artifact/{artifact.id}"
            for name, address in pages.items():
                browser.open(base + address)
                browser.wait(SETTLED)
                path = folder / f"{flow}-{name}.png"
                browser.picture(path, width=WIDTH, height=HEIGHT)
                yield path


def _newest(client: SyncPrefectClient) -> Iterator[tuple[str, FlowRun]]:
    """Yield the newest run of each flow that has begun, with the flow's name."""
    seen = set[str]()
    # Of a deployment with a schedule the newest are those to come.
    begun = FlowRunFilter(start_time=FlowRunFilterStartTime(is_null_=False))
    for run in client.read_flow_runs(
        flow_run_filter=begun, limit=NEWEST, sort=FlowRunSort.START_TIME_DESC
    ):
        if (flow := client.read_flow(run.flow_id).name) in seen:
            continue
        seen.add(flow)
        yield flow, run


if __name__ == "__main__":
    sys.exit(main())

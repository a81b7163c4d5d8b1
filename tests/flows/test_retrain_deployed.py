"""A cron of one minute, through the real server and worker, with training on Ray."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows import services
from flows.local import ROOT, client_settings, down, password
from flows.retrain import ENDS
from rlcore.retraining.champions import champions
from rlcore.store.artifacts import ArtifactStore
from tasks.retraining import SUPERSEDED
from tests.flows.retrained import NAME, write_recipe, write_rows
from tests.flows.test_local import UP, python

pytestmark = [pytest.mark.timeout(1500), pytest.mark.slow]
WAIT_S = 420.0
DEPLOY = """
import sys
from pathlib import Path
from flows import local
home = Path(sys.argv[1])
site = local.connect(home)
from flows.deploy import deploy_own
from flows.retrain import retrain
from flows.rl_pipeline import rl_pipeline
recipe = Path(sys.argv[2])
deploy_own(rl_pipeline, recipe, retrain, root=recipe.parent)
"""


@dataclass
class _Site:
    folder: Path
    client: SyncPrefectClient

    @property
    def entries(self) -> list[Any]:
        return champions(ArtifactStore(self.folder / "runs" / "store"), NAME)

    def runs(self) -> list[FlowRun]:
        """The retrainings that have ended, the oldest first."""
        found = self.client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=["retrain"]))
        )
        ended = [run for run in found if run.state is not None and run.state.is_final()]
        return sorted(ended, key=lambda run: str(run.start_time))

    def events(self) -> set[str]:
        """The names of what was told of champions. A finding may be told too: whether the samples
        of a group differ is a matter of rounding."""
        asked = {"filter": {"event": {"prefix": ["rl-pipeline.champion."]}}}
        found = self.client.request("POST", "/events/filter", json=asked).json()["events"]
        return {event["event"] for event in found}

    def wait(self, what: str, holds: Callable[[FlowRun], bool], after: int = 0) -> FlowRun:
        """Return the first run that ended for which ``holds``, ``after`` of them left out. Where
        training took longer than a minute, the run that was due meanwhile is superseded."""
        deadline = time.monotonic() + WAIT_S
        while True:
            runs = self.runs()
            states = {run.name: run.state for run in runs if run.state_name != SUPERSEDED}
            assert all(state and state.is_completed() for state in states.values()), states
            if found := [run for run in runs[after:] if holds(run)]:
                return found[0]
            assert time.monotonic() < deadline, f"no run {what}: {[r.state_name for r in runs]}"
            time.sleep(1)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[_Site]:
    """A server with a worker, and the recipe deployed with a cron of one minute."""
    home, folder = tmp_path / ".prefect", tmp_path / "mine"
    recipe = write_recipe(folder, cron="* * * * *", start="champion")
    tree = yaml.safe_load(recipe.read_text())
    tree["hardware"] = {
        "rollout": {"engine": "transformers", "engines": 1},
        "learner": {"threads": 1},
    }
    recipe.write_text(yaml.safe_dump(tree))
    write_rows(folder / "rows" / "1.jsonl", "yes", 64, 0)
    try:
        started = python(UP, str(home), str(tmp_path / ".env"), extra={"PYTHONPATH": str(ROOT)})
        assert started.returncode == 0, started.stderr
        server = services.find(home, "server")
        assert server is not None
        assert server.port is not None
        done = python(DEPLOY, str(home), str(recipe), extra={"PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr
        url = client_settings(home, server.port)["PREFECT_API_URL"]
        own: Any = {PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: password(home)}
        with temporary_settings(own), get_client(sync_client=True) as client:
            yield _Site(folder, client)
    finally:
        down(home)


def _raylets() -> set[int]:
    return {p.pid for p in psutil.process_iter(["name"]) if p.info["name"] == "raylet"}


def test_a_cron_of_a_minute_trains_when_there_is_something_new(
    site: _Site, record_property: Callable[[str, object], None]
) -> None:
    first = site.wait("completed", lambda run: run.state_name == "Promoted")
    assert [entry.cause for entry in site.entries] == ["first"]
    before = _raylets()
    nothing = site.wait("found nothing new", lambda run: run.state_name == "Nothing new")
    assert nothing.state is not None
    assert nothing.state.message == "champion 1 of 'says' has learnt from all that there is"
    assert nothing.total_run_time < timedelta(seconds=30)
    assert _raylets() <= before, "a firing without news started Ray"
    record_property("seconds_of_nothing_new", nothing.total_run_time.total_seconds())
    print(
        f"first {first.total_run_time.total_seconds():.1f} s, nothing new"
        f" {nothing.total_run_time.total_seconds():.1f} s"
    )
    write_rows(site.folder / "rows" / "2.jsonl", "yes", 64, 1000)
    count = len(site.runs())
    second = site.wait("trained again", lambda run: run.state_name in ENDS.values(), after=count)
    assert second.id != first.id
    children = [
        path.parent
        for path in (site.folder / "runs").glob("says-*/recipe.yaml")
        if f"export/{site.entries[0].export_key}/" in path.read_text()
    ]
    assert len(children) == 1, "the second run did not begin with the champion"
    summary = json.loads((children[0] / "summary.json").read_text())
    assert "sft" not in summary["artifacts"]
    expected = {"rl-pipeline.champion.promoted", "rl-pipeline.champion.held"}
    deadline = time.monotonic() + 300
    while (told := site.events()) != expected:  # the server writes them down in batches
        assert time.monotonic() < deadline, told
        time.sleep(1)

"""The page of a run: published while it goes, with its end, in place, and never in its way."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import Artifact
from prefect.runtime import flow_run
from prefect.states import Cancelled, Crashed

from rlcore.diagnostics.watch import Finding, findings_frame
from rlcore.report.facts import Ending
from rlcore.results.folders import report_folder
from rlcore.results.stage_rows import RestartRecord, record_restart
from tasks.run_page import page as pages
from tasks.run_page.page import RUNNING, RunPage, View, artifact_key, show_end
from tasks.run_page.report import DIAGNOSTICS
from tests.rlcore.report.made import MADE, MadeRun
from tests.tiers import fast

pytestmark = pytest.mark.timeout(120)


def run_of(body: Callable[[UUID], None]) -> UUID:
    """Run ``body`` in a flow; return the flow run's id."""

    @flow(name="page-test")
    def run() -> str:
        body(UUID(str(flow_run.id)))
        return str(flow_run.id)

    return UUID(run())


def shown(flow_run_id: UUID) -> dict[str, Artifact]:
    """Return what is on the page, by key."""
    only: Any = ArtifactFilterFlowRunId(any_=[flow_run_id])
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=only))
    assert len(found) == len({artifact.key for artifact in found}), "a key stands twice"
    return {artifact.key or "": artifact for artifact in found}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeRun:
    """A run that is in its stage rl, after three iterations."""
    monkeypatch.chdir(tmp_path)
    run = MadeRun(Path("runs"))
    run.train(run.prepare(), 3)
    return run


def view_of(made: MadeRun, flow_run_id: UUID) -> View:
    return View(made.folder, made.open().recipe, flow_run_id)


def test_a_page_grows_in_place_while_the_run_goes(made: MadeRun, prefect_server: str) -> None:
    """Each validation had been a version of every artifact, hundreds on one page."""
    ids: list[dict[str, Artifact]] = []

    def body(flow_run_id: UUID) -> None:
        view = view_of(made, flow_run_id)
        view.publish()
        ids.append(shown(flow_run_id))
        made.evaluate()
        view.publish()
        view.publish(Ending("completed"))

    after = shown(run_of(body))
    before = ids[0]
    assert set(before) >= {f"quickstart-{key}" for key in ("run", "metrics-rl", "lineage")}
    assert {key: after[key].id for key in before} == {key: a.id for key, a in before.items()}
    assert "running" in str(before["quickstart-run"].data)
    assert "completed" in str(after["quickstart-run"].data)
    assert "quickstart-evaluation" not in before
    assert "greedy" in str(after["quickstart-evaluation"].data)
    assert (report_folder(made.folder) / "index.html").is_file()
    assert (report_folder(made.folder) / "rl-curves.png").is_file()


def test_restarts_are_on_the_page_with_what_they_cost(made: MadeRun, prefect_server: str) -> None:
    """A run that continued without anybody's doing shows that it did, at once and with the cost."""
    first = RestartRecord(
        flow_run_id=next(iter(made.open().stages.values())).flow_run_id,
        stage="rl",
        number=1,
        step=2,
        cause="worker 'learner-0' died of <b>SIGKILL</b>",
        remedy="new workers",
        began="2026-01-01T00:00:01.25+00:00",
        seconds=None,
    )
    pages: list[str] = []

    def body(flow_run_id: UUID) -> None:
        view = view_of(made, flow_run_id)
        view.publish()
        assert "quickstart-restarts" not in shown(flow_run_id)
        for row in (first, replace(first, seconds=61.6)):
            record_restart(made.store, row, MADE)
            view.publish()
            pages.append(str(shown(flow_run_id)["quickstart-restarts"].data))

    run_of(body)
    killed = r"worker 'learner\-0' died of &lt;b&gt;SIGKILL&lt;/b&gt;"
    row = rf"| 2026\-01\-01T00\:00\:01 | rl | step 2 | {killed} | new workers | "
    assert [page.splitlines()[-1] for page in pages] == [row + "not yet known |", row + "62 s |"]


def test_what_ended_a_run_is_on_its_page(made: MadeRun, prefect_server: str) -> None:
    def body(flow_run_id: UUID) -> None:
        with (
            pytest.raises(ValueError, match="learner-0 died"),
            RunPage.open(view_of(made, flow_run_id), print),
        ):
            raise ValueError("learner-0 died of <b>SIGKILL</b>")

    text = str(shown(run_of(body))["quickstart-run"].data)
    assert "failed" in text
    assert r"learner\-0 died of &lt;b&gt;SIGKILL" in text
    assert "in the stage rl" in text


def test_what_is_shown_holds_no_secret(
    made: MadeRun, prefect_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text on the page is escaped, so that a secret in it does not read as it is."""
    planted = f"planted-{token_hex(16)}_[x]"
    monkeypatch.setenv("SOME_API_KEY", planted)

    def body(flow_run_id: UUID) -> None:
        with (
            pytest.raises(ValueError, match="died"),
            RunPage.open(view_of(made, flow_run_id), print),
        ):
            raise ValueError(f"learner-0 died of {planted} at https://me:{planted[:12]}@host")

    page = str(shown(run_of(body))["quickstart-run"].data)
    assert r"learner\-0 died of \*\*\* at https\://\*\*\*\@host" in page
    assert planted[8:20] not in page


def test_what_ended_a_run_is_not_listed_as_silent(made: MadeRun, prefect_server: str) -> None:
    """The page called `reward_errors` silent in a run that died of rows without a score."""
    fatal = Finding("reward_errors", "fatal", 4, None, None, "9 of 9 rows", "correct the function")
    frame = {DIAGNOSTICS: findings_frame([fatal])}
    made.store.put(DIAGNOSTICS, made.key, tables=frame, lineage=MADE)

    def body(flow_run_id: UUID) -> None:
        view_of(made, flow_run_id).publish(Ending("failed", "9 of 9 rows could not be scored"))

    text = str(shown(run_of(body))["quickstart-diagnostics"].data)
    assert "### `reward_errors`: fatal\n\n9 of 9 rows\n" in text
    assert "4 to now" in text
    assert "`reward_errors` (" not in text


def test_the_newest_state_counts_and_nobody_waits(
    made: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that hangs costs the run nothing, and ten refreshes meanwhile are one."""
    began, go_on = threading.Event(), threading.Event()
    passes: list[Ending] = []

    def publish(ending: Ending) -> None:
        passes.append(ending)
        began.set()
        go_on.wait(300)

    monkeypatch.setattr(pages, "EVERY_S", 0.0)
    view: Any = SimpleNamespace(publish=publish)
    with RunPage.open(view, print) as page:
        page.refresh()
        assert began.wait(300)
        for _ in range(10):
            page.refresh()
        assert passes == [RUNNING]
        go_on.set()
        page.end(Ending("completed"))
    assert passes[-1] == Ending("completed")
    assert len(passes) <= 3


def test_a_stage_is_shown_though_the_next_pass_is_not_due(
    made: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = threading.Semaphore(0)
    monkeypatch.setattr(pages, "EVERY_S", 1000.0)
    view: Any = SimpleNamespace(publish=lambda ending: passes.release())
    with RunPage.open(view, print) as page:
        page.refresh()
        assert passes.acquire(timeout=300)
        page.refresh()
        assert not passes.acquire(timeout=0.3)
        page.refresh(at_once=True)
        assert passes.acquire(timeout=300)


def test_a_page_that_fails_is_logged_once_and_ends_nothing(made: MadeRun) -> None:
    failed = threading.Event()

    def publish(ending: Ending) -> None:
        failed.set()
        raise ConnectionError("the server is away")

    lines: list[str] = []
    view: Any = SimpleNamespace(publish=publish)
    with RunPage.open(view, lines.append) as page:
        page.refresh()
        assert failed.wait(300)
    assert lines == ["the run's page is not up to date (ConnectionError: the server is away)"]


@pytest.mark.parametrize("times", fast([1, 2], 2))
def test_a_killed_run_says_so_however_often_the_hook_is_called(
    made: MadeRun, prefect_server: str, times: int
) -> None:
    ids: list[UUID] = []

    def body(flow_run_id: UUID) -> None:
        ids.append(flow_run_id)
        view_of(made, flow_run_id).publish()

    flow_run_id = run_of(body)
    recipe = "quickstart"
    folder = made.folder.rename(made.folder.with_name(f"{recipe}-{str(flow_run_id)[:8]}"))
    _as_run(made, folder)
    killed = SimpleNamespace(id=flow_run_id, parameters={"recipe": recipe}, name="page-test")
    for _ in range(times):
        show_end(None, killed, Crashed(message="exited with non-zero status code -9"))
    text = str(shown(flow_run_id)["quickstart-run"].data)
    assert "crashed" in text
    assert r"status code \-9" in text


def test_a_cancelled_run_is_not_called_crashed(made: MadeRun, prefect_server: str) -> None:
    flow_run_id = run_of(lambda flow_run_id: view_of(made, flow_run_id).publish())
    folder = made.folder.rename(made.folder.with_name(f"quickstart-{str(flow_run_id)[:8]}"))
    _as_run(made, folder)
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run_id, Cancelled(message="asked for"), force=True)
    ended = SimpleNamespace(id=flow_run_id, parameters={"recipe": "quickstart"}, name="x")
    show_end(None, ended, Crashed(message="aborted"))
    text = str(shown(flow_run_id)["quickstart-run"].data)
    assert "cancelled" in text
    assert "asked for" in text


def _as_run(made: MadeRun, folder: Path) -> None:
    """Record the stage of ``made`` for the run whose folder is ``folder`` now."""
    made.name, made.folder = folder.name, folder
    made.stage("rl", "policy", made.key)


def test_a_key_is_what_prefect_takes() -> None:
    assert (
        artifact_key("My_Recipe.v2", "metrics", "reward_model")
        == "my-recipe-v2-metrics-reward-model"
    )

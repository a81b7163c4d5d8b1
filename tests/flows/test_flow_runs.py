"""A run is found by the names that a person has at hand."""

import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.states import Cancelling, Running, Scheduled

from flows import local
from flows.cli import main
from flows.flow_runs import find_run, states, whole
from schemas.errors import UserError
from tests.conftest import HOME

pytestmark = pytest.mark.timeout(120)


def test_a_run_is_found_by_folder_id_and_as_the_latest(prefect_server: str) -> None:
    """`rl-pipeline watch` in another terminal: nobody types 36 digits."""
    for name in ("first", "second"):
        flow(name="rl-pipeline", flow_run_name=name)(lambda: None)()
    run = find_run("latest")
    assert run.name == "second"
    for name in (str(run.id), str(run.id)[:8], f"second-{str(run.id)[:8]}"):
        assert find_run(name).id == run.id
    with pytest.raises(UserError, match=r"no run of the Prefect server match 'gone'; .*second-"):
        find_run("gone")


def test_the_latest_run_is_none_that_is_for_later(prefect_server: str) -> None:
    """`rl-pipeline stop latest` cancelled next week's run and let that of today go on."""
    pipeline = flow(name="rl-pipeline", flow_run_name="of-today")(lambda: None)
    pipeline()
    due = datetime.now(UTC)
    with get_client(sync_client=True) as client:
        later = Scheduled(scheduled_time=due + timedelta(days=7))
        next_week = client.create_flow_run(pipeline, name="next-week", state=later)
        assert find_run("latest").name == "of-today"
        assert find_run(str(next_week.id)).name == "next-week"
        client.create_flow_run(pipeline, name="waits", state=Scheduled(scheduled_time=due))
    assert find_run("latest").name == "waits", "for its worker"


def test_the_pipeline_of_a_retraining_ends_with_the_retraining(prefect_server: str) -> None:
    """It has no process of its own: a stop that asked it alone would end nothing."""
    pipeline = flow(name="rl-pipeline", flow_run_name="called")(lambda: None)
    flow(name="retrain", flow_run_name="calls")(lambda: pipeline())()
    called = find_run("latest")
    assert called.name == "called"
    assert whole(called).name == "calls"
    assert whole(whole(called)) == whole(called)


def test_a_run_that_was_switched_off_with_its_machine_is_not_called_running(
    prefect_server: str,
) -> None:
    """Nothing tells the server so before its automation looks, and that looks while it is up."""
    process = subprocess.Popen(["true"])
    process.wait()
    run = flow(name="rl-pipeline")(lambda: None)
    with get_client(sync_client=True) as client:
        created = client.create_flow_run(run, name="switched-off", state=Running())
        digits = str(created.id)[:8]
        # Without a number it may be a retraining's, in the process of that one.
        assert states(of_this_machine=True)[digits] == "running"
        client.update_flow_run(created.id, infrastructure_pid=str(process.pid))
        assert states(of_this_machine=True)[digits] == "crashed"
        assert states(of_this_machine=False)[digits] == "running"


@pytest.mark.parametrize("state", [Running(), Cancelling()])
def test_a_run_whose_process_is_gone_is_closed_where_it_is_to_stop(
    state: State, prefect_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would have ended it: it stayed Cancelling for good."""
    monkeypatch.setattr(local, "HOME", HOME)
    monkeypatch.delenv("PREFECT_API_URL")
    process = subprocess.Popen(["true"])
    process.wait()
    run = flow(name="rl-pipeline")(lambda: None)
    with get_client(sync_client=True) as client:
        created = client.create_flow_run(run, name="killed", state=state)
        client.update_flow_run(created.id, infrastructure_pid=str(process.pid))
        assert main(["stop", str(created.id)[:8]]) == 2
        closed = client.read_flow_run(created.id).state
        assert closed is not None
        assert closed.is_crashed()

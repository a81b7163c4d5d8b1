"""Of the runs that came due while one was in progress, the first alone has something to do."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed, Running, Scheduled

from flows.deploy import ensure_pool
from flows.flow_runs import POOL
from flows.paths import AUTOMATIONS
from flows.retrain import ENDS, NOTHING_NEW
from tasks.retraining import SUPERSEDED, done_since, supersede

pytestmark = pytest.mark.timeout(60)


@flow(name="superseded-test")
def retraining(recipe: str = "one") -> None:
    """Do nothing."""


@pytest.fixture
def client(prefect_server: str) -> Iterator[SyncPrefectClient]:
    del prefect_server
    with get_client(sync_client=True) as client:
        ensure_pool(client, runs=1)
        yield client


def test_a_run_is_superseded_by_one_that_began_after_it_was_due(
    client: SyncPrefectClient,
) -> None:
    """The first late one does the work, and not the last: with a cron whose period is about the
    time of a start there is always a newer one, and none would train."""
    deployment: Any = retraining.to_deployment("one", work_pool_name=POOL)
    made = deployment.apply(work_pool_name=POOL)
    now = datetime.now(UTC)

    def due(minutes_ago: float, **parameters: Any) -> Any:
        at: Any = now - timedelta(minutes=minutes_ago)
        return client.create_flow_run_from_deployment(
            made, state=Scheduled(scheduled_time=at), parameters=parameters
        ).id

    def end(run: Any, state: State) -> None:
        client.set_flow_run_state(run, Running(), force=True)
        client.set_flow_run_state(run, state, force=True)

    oldest, middle, newest = due(3), due(2), due(1)
    other, later = due(0.5, recipe="another"), due(-5)
    runs = (oldest, middle, newest, other, later)
    assert [done_since(one) for one in runs] == [None] * 5, "none has run"
    end(oldest, Failed())
    assert done_since(middle) is None, "what failed has done no work"
    end(middle, Completed(name=SUPERSEDED))
    assert done_since(newest) is None, "nor has one that left it to another"
    end(middle, Completed(name=NOTHING_NEW))
    for one in (oldest, newest):
        found = done_since(one)
        assert found is not None
        assert found.id == middle
    assert done_since(other) is None, "it was asked for something else"
    assert done_since(later) is None, "it is not due yet: there may be news until then"


def test_who_has_done_the_work_closes_what_came_due_before_it_began(
    client: SyncPrefectClient,
) -> None:
    deployment: Any = retraining.to_deployment("two", work_pool_name=POOL)
    made = deployment.apply(work_pool_name=POOL)
    now = datetime.now(UTC)

    def due(minutes_ago: float, **parameters: Any) -> Any:
        at: Any = now - timedelta(minutes=minutes_ago)
        return client.create_flow_run_from_deployment(
            made, state=Scheduled(scheduled_time=at), parameters=parameters
        ).id

    mine, late, other, later = due(3), due(2), due(2, recipe="another"), due(-5)
    assert supersede(mine) == 0, "it has not begun"
    client.set_flow_run_state(mine, Running(), force=True)
    assert supersede(mine) == 1
    closed, *open_ = [client.read_flow_run(one).state for one in (late, other, later)]
    assert closed is not None
    assert closed.is_cancelled()
    assert closed.name == SUPERSEDED
    # By type: the server calls one that is overdue Late.
    assert [state and state.is_scheduled() for state in open_] == [True, True]


def test_a_run_that_no_deployment_made_has_none_behind_it(prefect_server: str) -> None:
    del prefect_server

    @flow(name="superseded-alone")
    def alone() -> bool:
        from prefect.runtime import flow_run

        return done_since(flow_run.id) is None

    assert alone()


def test_the_heartbeat_automation_expects_the_names_of_these_ends() -> None:
    """Names of states are names of events: one that it does not expect would count as no end."""
    (automation,) = yaml.safe_load(AUTOMATIONS.read_text())
    expected = automation["trigger"]["expect"]
    assert {
        f"prefect.flow-run.{name}" for name in (NOTHING_NEW, SUPERSEDED, *ENDS.values())
    } <= set(expected)

"""Of the runs that came due while one went on, the newest alone has something to do."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.states import Scheduled

from flows.deploy import ensure_pool
from flows.places import AUTOMATIONS
from flows.pool_runs import POOL
from flows.retrain import NOTHING_NEW, SUPERSEDED
from tasks.retraining.observe import newer_run

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


def test_a_late_run_with_a_newer_one_behind_it_is_superseded(client: SyncPrefectClient) -> None:
    deployment: Any = retraining.to_deployment("one", work_pool_name=POOL)
    made = deployment.apply(work_pool_name=POOL)
    now = datetime.now(UTC)

    def due(minutes_ago: float, **parameters: Any) -> Any:
        at: Any = now - timedelta(minutes=minutes_ago)
        return client.create_flow_run_from_deployment(
            made, state=Scheduled(scheduled_time=at), parameters=parameters
        ).id

    oldest, middle, newest = due(3), due(2), due(1)
    other, later = due(0.5, recipe="another"), due(-5)
    found = newer_run(oldest)
    assert found is not None
    assert found.id == newest
    found = newer_run(middle)
    assert found is not None
    assert found.id == newest
    for one in (newest, other, later):  # the last is not due yet
        assert newer_run(one) is None


def test_a_run_that_no_deployment_made_has_none_behind_it(prefect_server: str) -> None:
    del prefect_server

    @flow(name="superseded-alone")
    def alone() -> bool:
        from prefect.runtime import flow_run

        return newer_run(flow_run.id) is None

    assert alone()


def test_the_heartbeat_automation_expects_the_names_of_these_ends() -> None:
    """Names of states are names of events: one that it does not expect would count as no end."""
    (automation,) = yaml.safe_load(AUTOMATIONS.read_text())
    expected = automation["trigger"]["expect"]
    assert {f"prefect.flow-run.{name}" for name in (NOTHING_NEW, SUPERSEDED)} <= set(expected)

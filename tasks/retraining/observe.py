"""Retraining, step 1: what is new, and whether a newer run waits behind this one."""

from datetime import UTC, datetime
from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.logging import get_run_logger

from rlcore.retraining.news import News, news
from rlcore.retraining.observed import observe as observe_data
from rlcore.store.reader import ArtifactReader
from schemas.recipe import Recipe


@task(name="observe", cache_policy=NO_CACHE, persist_result=False)
def observe(recipe: Recipe) -> News:
    """Return what there is to learn that the champion has not seen. Raises as
    ``rlcore.retraining.observed.observe``."""
    found = news(recipe, ArtifactReader(recipe.store), observe_data(recipe.data))
    for note in found.observed.notes:
        get_run_logger().warning(note)
    get_run_logger().info(found.told)
    return found


def newer_run(run_id: UUID) -> FlowRun | None:
    """Return the newest run of the same deployment with the same parameters that is due and waits
    for this one to end; None where there is none, or no deployment made the run.

    Prefect starts all that came due while a run was going on, the oldest first.
    """
    with get_client(sync_client=True) as client:
        mine = client.read_flow_run(run_id)
        if mine.deployment_id is None or mine.expected_start_time is None:
            return None
        waiting = client.read_flow_runs(
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[mine.deployment_id])),
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(
                    type=FlowRunFilterStateType(any_=[StateType.SCHEDULED, StateType.PENDING])
                ),
                expected_start_time=FlowRunFilterExpectedStartTime.model_validate(
                    {"after_": mine.expected_start_time, "before_": datetime.now(UTC)}
                ),
            ),
        )
    newer = [
        run
        for run in waiting
        if run.expected_start_time is not None
        and run.expected_start_time > mine.expected_start_time
        and run.parameters == mine.parameters
    ]
    return max(newer, key=lambda run: (run.expected_start_time, str(run.id)), default=None)

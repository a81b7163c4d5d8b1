"""Retraining, step 1: what is new, and whether another run has learnt from it already."""

from typing import Any
from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from rlcore.retraining.news import News, news
from rlcore.retraining.news import observe as observe_data
from rlcore.store.reader import ArtifactReader
from schemas.recipe import Recipe

# The name of the state of a run whose work another has done (flows/automations.yaml expects it).
SUPERSEDED = "Superseded"


@task(name="observe", cache_policy=NO_CACHE, persist_result=False)
def observe(recipe: Recipe) -> News:
    """Return what there is to learn that the champion has not seen. Raises as
    ``rlcore.retraining.news.observe``."""
    found = news(recipe, ArtifactReader(recipe.store), observe_data(recipe.data))
    for note in found.observed.notes:
        get_run_logger().warning(note)
    get_run_logger().info(found.told)
    return found


def done_since(run_id: UUID) -> FlowRun | None:
    """Return a run of the same deployment with the same parameters that began after this one was
    due, and completed: it has seen all that this one would. None where there is none, or no
    deployment made the run.

    Prefect starts all that came due while a run was in progress, the oldest first.
    """
    with get_client(sync_client=True) as client:
        mine = client.read_flow_run(run_id)
        if mine.deployment_id is None or mine.expected_start_time is None:
            return None
        completed = _alike(
            client,
            mine,
            state={"type": {"any_": [StateType.COMPLETED]}, "name": {"not_any_": [SUPERSEDED]}},
            start_time={"after_": mine.expected_start_time},
        )
    return next(iter(completed), None)


def supersede(run_id: UUID) -> int:
    """Close the runs of this one's deployment and parameters that came due before this one began
    and still wait; return how many. For a run that has done its work: none of them would find any,
    and each would take the time of a start to say so, in green."""
    with get_client(sync_client=True) as client:
        mine = client.read_flow_run(run_id)
        if mine.deployment_id is None or mine.start_time is None:
            return 0
        late = _alike(
            client,
            mine,
            state={"type": {"any_": [StateType.SCHEDULED]}},
            expected_start_time={"before_": mine.start_time},
        )
        for run in late:
            client.set_flow_run_state(
                run.id, Cancelled(name=SUPERSEDED, message=f"the run '{mine.name}' did its work")
            )
        return len(late)


def _alike(client: SyncPrefectClient, mine: FlowRun, **which: Any) -> list[FlowRun]:
    """Return the runs that have this one's deployment and parameters; ``which``: fields of their
    filter."""
    runs = client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate(
            {"deployment_id": {"any_": [mine.deployment_id]}, **which}
        )
    )
    return [run for run in runs if run.parameters == mine.parameters]

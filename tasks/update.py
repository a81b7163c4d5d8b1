"""Phase 4: step the learner, as a compare-and-set on its weight version."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState
from schemas.artifacts import ArtifactRef


@task(task_run_name="update-{state.next_iteration:04d}", cache_policy=NO_CACHE)
def update(phases: Phases, state: LoopState, rollouts: ArtifactRef, advantages: ArtifactRef) -> int:
    """Return the learner's new weight version; see ``Phases.update``."""
    return phases.update(state, rollouts, advantages)

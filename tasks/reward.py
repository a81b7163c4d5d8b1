"""Phase 2: score the recorded trajectories."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rlcore.recipes.redaction import redacting
from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState
from schemas.artifacts import ArtifactRef


@task(task_run_name="reward-{state.next_iteration:04d}", cache_policy=NO_CACHE)
def reward(phases: Phases, state: LoopState, rollouts: ArtifactRef) -> ArtifactRef:
    """Return one round's rewards; see ``Phases.reward``."""
    with redacting():
        return phases.reward(state, rollouts)

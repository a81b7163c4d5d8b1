"""Phase 1: sample trajectories and record them before anything is learnt from them."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rlcore.recipes.redaction import redacting
from rlcore.rl.groups import DrawnGroups
from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState
from schemas.artifacts import ArtifactRef


@task(task_run_name="rollout-{state.next_iteration:04d}{groups.suffix}", cache_policy=NO_CACHE)
def rollout(phases: Phases, state: LoopState, groups: DrawnGroups) -> ArtifactRef:
    """Return one round's recorded rollouts; see ``Phases.rollout``."""
    with redacting():
        return phases.rollout(state, groups)

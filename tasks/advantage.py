"""Phase 3: log-probs under learner and reference, values, then advantages."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rlcore.recipes.redaction import redacting
from rlcore.rl.advantage import Advantages
from rlcore.rl.groups import DrawnGroups
from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState


@task(task_run_name="advantage-{state.next_iteration:04d}", cache_policy=NO_CACHE)
def advantage(phases: Phases, state: LoopState, groups: DrawnGroups) -> Advantages:
    """Return the iteration's advantages; see ``Phases.advantage``."""
    with redacting():
        return phases.advantage(state, groups)

"""Phase 4: step policy and critic, as a compare-and-set on their weight versions."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rlcore.recipes.redaction import redacting
from rlcore.rl.advantage import Advantages
from rlcore.rl.groups import DrawnGroups
from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState


@task(task_run_name="update-{state.next_iteration:04d}", cache_policy=NO_CACHE)
def update(
    phases: Phases, state: LoopState, groups: DrawnGroups, advantages: Advantages
) -> LoopState:
    """Return the state with the new weight version; see ``Phases.update``."""
    with redacting():
        return phases.update(state, groups, advantages)

"""Phase 5: new weights into every engine, proven; validation; the checkpoint ends the iteration."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rlcore.recipes.redaction import redacting
from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState


@task(task_run_name="sync-{state.next_iteration:04d}", cache_policy=NO_CACHE)
def sync(phases: Phases, state: LoopState) -> LoopState:
    """Return the state after the iteration; see ``Phases.sync``."""
    with redacting():
        return phases.sync(state)

"""The RL stage: iterations of five phases, each a separate task in the Prefect UI."""

from prefect import flow

from rlcore.rl.loop import Steps, iterate
from rlcore.rl.phases import Phases
from rlcore.rl.state import LoopState
from tasks.advantage import advantage
from tasks.reward import reward
from tasks.rl import rl_stage
from tasks.rollout import rollout
from tasks.run_page.report import IterationReport
from tasks.runtime.crashes import close_children
from tasks.sync import sync
from tasks.update import update


@flow(
    name="rl-loop",
    flow_run_name="{phases.recipe.name}-rl",
    validate_parameters=False,
    on_crashed=[close_children],
    on_cancellation=[close_children],
)
def rl_loop(phases: Phases, report: IterationReport) -> LoopState:
    """Iterate until all iterations are done or validation has held its target."""
    return iterate(phases, Steps(rollout, reward, advantage, update, sync), report)


rl = rl_stage(rl_loop)

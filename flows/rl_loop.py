"""The RL stage: iterations of five phases, each a task of its own in the Prefect UI."""

from prefect import flow
from prefect.logging import get_run_logger

from rlcore.models.files import MODEL_FOLDER
from rlcore.recipes import user_functions
from rlcore.rewards.registry import code_digests
from rlcore.rl.loop import Steps, iterate
from rlcore.rl.phases import Phases
from rlcore.rl.ptx import ptx_digests
from rlcore.rl.state import LoopState
from rlcore.workers import WORKER_MODULES
from schemas.artifacts import ArtifactRef
from tasks.advantage import advantage
from tasks.caching import StageRun, cached_stage
from tasks.crashes import close_children
from tasks.crew import open_phases
from tasks.report import IterationReport
from tasks.reward import reward
from tasks.rollout import rollout
from tasks.sync import sync
from tasks.update import update


@flow(
    name="rl-loop",
    validate_parameters=False,
    on_crashed=[close_children],
    on_cancellation=[close_children],
)
def rl_loop(phases: Phases, report: IterationReport) -> LoopState:
    """Iterate until all iterations are done or validation has held its target."""
    return iterate(phases, Steps(rollout, reward, advantage, update, sync), report)


@cached_stage(
    "rl",
    kind="policy",
    code=WORKER_MODULES,
    inputs=lambda recipe: {**code_digests(user_functions(recipe)), **ptx_digests(recipe.rl.ptx)},
)
def rl(run: StageRun) -> ArtifactRef:
    """RL from the policy of ``run.parents``; the result is the best policy by validation
    accuracy."""
    with (
        run.store.scratch() as scratch,
        open_phases(run) as phases,
        IterationReport.open(run) as report,
    ):
        state = rl_loop(phases, report)
        phases.finish(state, scratch / MODEL_FOLDER)
        best = state.best()[0]
        get_run_logger().info(
            f"RL ends after iteration {state.iteration}; best is iteration {best}"
        )
        return run.put(
            directory=scratch,
            metadata={"iteration": state.iteration, "best_iteration": best, **state.to_json()},
        )

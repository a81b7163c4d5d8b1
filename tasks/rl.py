"""Stage 5: RL from the policy of SFT. The loop is a subflow, whose tasks are the five phases."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from prefect.logging import get_run_logger

from rlcore.envs.names import environment_names
from rlcore.models.files import MODEL_FOLDER, model_directory
from rlcore.models.tokenizer import load_tokenizer
from rlcore.recipes import user_functions
from rlcore.rewards.registry import code_digests
from rlcore.rl.fork import fork_digests
from rlcore.rl.longer import why_from_zero
from rlcore.rl.phases import Phases
from rlcore.rl.ptx import ptx_digests, ptx_of
from rlcore.rl.state import LoopState
from rlcore.rl.workers import start_workers
from rlcore.workers.workers import (
    ENGINE_MODULES,
    ENVIRONMENT_MODULES,
    LEARNER_MODULES,
    REWARD_MODULES,
)
from schemas.artifacts import ArtifactRef
from schemas.names import REWARD_MODEL
from tasks.run_page.report import IterationReport
from tasks.runtime.caching import CachedStage, StageRun, cached_stage


def rl_stage(loop: Callable[[Phases, IterationReport], LoopState], module: str) -> CachedStage:
    """Return the stage whose iterations ``loop`` runs; ``module`` (dotted) defines the loop."""

    @cached_stage(
        "rl",
        kind="policy",
        code=(
            *ENGINE_MODULES,
            *LEARNER_MODULES,
            *REWARD_MODULES,
            *ENVIRONMENT_MODULES,
            module,
        ),
        inputs=lambda recipe: {**ptx_digests(recipe.rl.ptx), **fork_digests(recipe)},
        user_code=lambda recipe: code_digests(
            [*user_functions(recipe), *environment_names(recipe)]
        ),
        resumes=why_from_zero,
    )
    def rl(run: StageRun) -> ArtifactRef:
        """RL from the policy of ``run.parents``; the result is the best policy by validation
        accuracy."""
        with (
            run.store.scratch() as scratch,
            open_phases(run) as phases,
            IterationReport.open(run) as report,
        ):
            state = loop(phases, report)
            phases.finish(state, scratch / MODEL_FOLDER)
            best = state.best()[0]
            get_run_logger().info(
                f"RL ends after iteration {state.iteration}; best is iteration {best}"
            )
            return run.put(
                directory=scratch,
                metadata={"iteration": state.iteration, "best_iteration": best, **state.to_json()},
                parents=phases.best_record(state),
            )

    return rl


@contextmanager
def open_phases(run: StageRun) -> Iterator[Phases]:
    """Yield the phases of one RL run; its learners end with the context, the engines live on."""
    recipe, store = run.recipe, run.store
    policy = model_directory(store.directory(run.parents["policy"]))
    dataset = run.parents["dataset"]
    reward_model = None
    if REWARD_MODEL in run.parents:
        reward_model = model_directory(store.directory(run.parents[REWARD_MODEL]))
    with ExitStack() as stack:
        workers = start_workers(recipe.rl, run.workers, policy, stack, reward_model=reward_model)
        tokenizer = load_tokenizer(policy)
        ptx = ptx_of(recipe.rl.ptx, store, dataset, tokenizer)
        yield Phases(
            recipe,
            store=store,
            key=run.records,
            lineage=run.resumable(),
            prompts=store.table(dataset, "prompts"),
            ptx=ptx,
            tokenizer=tokenizer,
            workers=workers,
            log=get_run_logger().warning,
        )

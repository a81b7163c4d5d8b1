"""Stage 6: RL from the policy so far. The loop is a subflow, whose tasks are the five phases."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from prefect.logging import get_run_logger

from rlcore.models.files import MODEL_FOLDER
from rlcore.models.stop_tokens import stops_of
from rlcore.models.tokenizer import load_tokenizer
from rlcore.rl.phases import Phases
from rlcore.rl.prompts import PromptRows
from rlcore.rl.ptx import ptx_of
from rlcore.rl.records import forked_engine, recorded_engine
from rlcore.rl.roles import start_workers
from rlcore.rl.state import LoopState
from schemas.artifacts import ArtifactRef
from schemas.names import AVERAGE, REWARD_MODEL, WEIGHTS
from schemas.stages import Stage
from tasks.run_page.report import IterationReport
from tasks.runtime.caching import CachedStage, StageRun, cached_stage
from tasks.runtime.stage_run import sampling


def rl_stage(loop: Callable[[Phases, IterationReport], LoopState]) -> CachedStage:
    """Return the stage whose iterations ``loop`` runs."""

    @cached_stage(Stage.RL)
    def rl(run: StageRun) -> ArtifactRef:
        """RL from the policy of ``run.parents`` to the best policy by validation accuracy."""
        run = sampling(
            run,
            run.model("policy"),
            recorded=recorded_engine(run.store, run.records),
            otherwise=forked_engine(run.store, run.recipe.rl.fork),
        )
        with (
            run.store.scratch() as scratch,
            open_phases(run) as phases,
            IterationReport.open(run) as report,
        ):
            state = loop(phases, report)
            best_record = phases.finish(state, scratch / MODEL_FOLDER)
            best = state.best()[0]
            get_run_logger().info(
                f"RL ends after iteration {state.iteration}; best is iteration {best}"
            )
            metadata = {"iteration": state.iteration, "best_iteration": best, **state.to_json()}
            if state.takes_average(best):
                metadata[WEIGHTS] = AVERAGE
            return run.put(directory=scratch, metadata=metadata, parents=best_record)

    return rl


@contextmanager
def open_phases(run: StageRun) -> Iterator[Phases]:
    """Yield the phases of one RL run; its learners end with the context, the engines live on."""
    recipe, store = run.recipe, run.store
    policy, dataset = run.model("policy"), run.parents["dataset"]
    reward_model = run.model(REWARD_MODEL) if REWARD_MODEL in run.parents else None
    with ExitStack() as stack:
        workers = start_workers(recipe.rl, run.workers, policy, stack, reward_model=reward_model)
        tokenizer = load_tokenizer(policy)
        ptx = ptx_of(recipe.rl.ptx, store, dataset, tokenizer)
        yield Phases(
            recipe,
            store=store,
            key=run.records,
            lineage=run.resumable(),
            prompts=PromptRows.of_file(store.table_file(dataset, "prompts")),
            ptx=ptx,
            tokenizer=tokenizer,
            stop_ids=stops_of(policy, tokenizer).ids,
            workers=workers,
            log=get_run_logger().warning,
        )

"""Builds the RL phases of a stage run: policy, data and long-lived workers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from prefect.logging import get_run_logger

from rlcore.models.files import model_directory
from rlcore.models.tokenizer import load_tokenizer
from rlcore.rl.crew import start_crew
from rlcore.rl.phases import Phases
from rlcore.rl.ptx import ptx_sequences
from schemas.names import REWARD_MODEL
from tasks.caching import StageRun


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
        crew = start_crew(recipe.rl, run.workers, policy, stack, reward_model=reward_model)
        tokenizer = load_tokenizer(policy)
        ptx = None
        if recipe.rl.ptx is not None:
            reads_demonstrations = recipe.rl.ptx.path is None
            table = store.table(dataset, "demonstrations") if reads_demonstrations else None
            ptx = ptx_sequences(recipe.rl.ptx, table, tokenizer)
        yield Phases(
            recipe,
            store=store,
            key=run.key,
            lineage=run.lineage(),
            prompts=store.table(dataset, "prompts"),
            ptx=ptx,
            tokenizer=tokenizer,
            crew=crew,
            log=get_run_logger().warning,
        )

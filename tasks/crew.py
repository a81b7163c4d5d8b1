"""Builds the RL phases of a stage run: policy, data and long-lived workers."""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect.logging import get_run_logger

from rlcore.models.files import model_directory
from rlcore.models.tokenizer import load_tokenizer
from rlcore.rl.phases import Crew, Phases
from tasks.caching import StageRun


@contextmanager
def open_phases(run: StageRun) -> Iterator[Phases]:
    """Yield the phases of one RL run; its learner ends with the context, the engines live on."""
    recipe, store = run.recipe, run.store
    policy = model_directory(store.directory(run.parents["policy"]))
    prompts = store.table(run.parents["dataset"], "prompts")
    kl = recipe.rl.algorithm.kl
    learner = run.workers.learner(policy, recipe.rl.update.optimizer, name="learner")
    reference = run.workers.reference(policy) if kl.uses_reference else None
    try:
        yield Phases(
            recipe,
            store=store,
            key=run.key,
            lineage=run.lineage(),
            prompts=prompts,
            tokenizer=load_tokenizer(policy),
            crew=Crew(
                learner=learner,
                engines=run.workers.engines(policy),
                rewards=run.workers.rewards(),
                reference=reference,
            ),
            log=get_run_logger().warning,
        )
    finally:
        learner.stop()
        if reference is not None:
            reference.stop()

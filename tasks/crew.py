"""Builds the RL phases of a stage run: policy, data and long-lived workers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prefect.logging import get_run_logger

from rlcore.learner.group import LearnerGroup
from rlcore.models.files import model_directory
from rlcore.models.tokenizer import load_tokenizer
from rlcore.rl.phases import Crew, Phases
from schemas.names import REWARD_MODEL
from tasks.caching import StageRun


@contextmanager
def open_phases(run: StageRun) -> Iterator[Phases]:
    """Yield the phases of one RL run; its learners end with the context, the engines live on."""
    recipe, store = run.recipe, run.store
    policy = model_directory(store.directory(run.parents["policy"]))
    dataset = run.parents["dataset"]
    with ExitStack() as stack:
        crew = _crew(run, policy, stack)
        yield Phases(
            recipe,
            store=store,
            key=run.key,
            lineage=run.lineage(),
            prompts=store.table(dataset, "prompts"),
            demonstrations=store.table(dataset, "demonstrations") if recipe.rl.ptx else None,
            tokenizer=load_tokenizer(policy),
            crew=crew,
            log=get_run_logger().warning,
        )


def _crew(run: StageRun, policy: Path, stack: ExitStack) -> Crew:
    """Start what the algorithm needs and nothing else; ``stack`` stops the learners."""
    rl, workers = run.recipe.rl, run.workers
    kl = rl.algorithm.kl
    reward_model = None
    if REWARD_MODEL in run.parents:
        reward_model = model_directory(run.store.directory(run.parents[REWARD_MODEL]))

    def stopped_in_the_end(learner: LearnerGroup) -> LearnerGroup:
        stack.callback(learner.stop)
        return learner

    exact = kl.uses_reference and kl.estimator == "full"
    learner = stopped_in_the_end(
        workers.learner(
            policy,
            rl.update.optimizer,
            name="learner",
            reference_dir=policy if exact else None,
        )
    )
    reference = critic = None
    if kl.uses_reference and not exact:
        reference = stopped_in_the_end(workers.reference(policy))
    if rl.critic is not None:
        start = reward_model if rl.critic.init == REWARD_MODEL else policy
        assert start is not None, "the recipe trains the reward model that the critic starts from"
        critic = stopped_in_the_end(
            workers.learner(start, rl.critic.optimizer, name="critic", head="value")
        )
    return Crew(
        learner=learner,
        engines=workers.engines(policy),
        rewards=workers.rewards(reward_model),
        reference=reference,
        critic=critic,
    )

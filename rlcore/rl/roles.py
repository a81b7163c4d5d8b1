"""Which workers an RL run needs for its algorithm (policy, reference, critic, engines, rewards),
how they are placed and started."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rlcore.engines.pool import EnginePool
from rlcore.envs.pool import EnvironmentPool
from rlcore.learner.checkpoints import Learners
from rlcore.learner.pool import LearnerFuture, LearnerPool
from rlcore.learner.spec import TokenScores
from rlcore.models.classifier import check_reads_ids, located
from rlcore.results.metrics import whole_gpus
from rlcore.rewards.types import Scorers
from rlcore.rl.workers import Workers
from schemas.names import REWARD_MODEL, brought_model
from schemas.recipe import Recipe
from schemas.rl import RLSection
from schemas.stages import Stage


@dataclass(frozen=True, slots=True)
class RLWorkers:
    """The long-lived workers of one RL run; ``reference``, ``LearnerPool.logprobs`` of the frozen
    policy, only when the KL term is on, ``critic`` only when the estimator reads values. ``gpus``:
    that learners and engines hold together, 1 without any. ``side_by_side``: the learners score,
    and train, at the same time (``have_own_places``)."""

    learner: LearnerPool
    engines: EnginePool
    rewards: Scorers
    reference: Callable[..., LearnerFuture[TokenScores]] | None = None
    critic: LearnerPool | None = None
    environments: EnvironmentPool | None = None
    gpus: int = 1
    side_by_side: bool = False

    @property
    def trained(self) -> Learners:
        """What a checkpoint holds."""
        actor = {"actor": self.learner}
        return actor if self.critic is None else {**actor, "critic": self.critic}


def start_workers(
    rl: RLSection,
    workers: Workers,
    policy: Path,
    stack: ExitStack,
    *,
    reward_model: Path | None = None,
    rewards: Scorers | None = None,
) -> RLWorkers:
    """Return the workers that train ``policy``; ``stack`` stops its learners, the engines live on.

    All of it starts side by side. The engines are waited for; each learner's first call waits for
    that learner.

    ``reward_model``: the trained model's directory, where the recipe has one. ``rewards``: what
    scores instead of the recipe's reward functions.
    """
    kl, hardware = rl.algorithm.kl, workers.recipe.hardware.learner

    def stopped_in_the_end(learner: LearnerPool) -> LearnerPool:
        stack.callback(learner.stop)
        return learner

    exact = kl.uses_reference and kl.estimator == "full"
    below = policy if exact else None
    learner = stopped_in_the_end(
        workers.learner(
            policy, rl.update.optimizer, name="learner", stage=Stage.RL, reference_dir=below
        )
    )
    frozen = critic = reference = None
    if workers.recipe.has_reference_worker:
        frozen = stopped_in_the_end(
            workers.learner(
                *(policy, None),
                name="reference",
                ranks=hardware.reference_ranks,
                on_host=hardware.offload_reference,
            )
        )
        reference = frozen.logprobs
    elif kl.uses_reference and not exact:  # the weights below an adapter, in the policy's learner
        reference = partial(learner.logprobs, reference=True)
    if rl.critic is not None:
        start = _critic_start(rl.critic.init, workers.recipe, policy, reward_model)
        critic = stopped_in_the_end(
            workers.learner(start, rl.critic.optimizer, name="critic", stage=Stage.RL, head="value")
        )
    engines = workers.engines(policy)
    shares = sum(pool.gpus for pool in (learner, frozen, critic, engines) if pool is not None)
    return RLWorkers(
        learner=learner,
        engines=engines,
        rewards=workers.rewards(policy, reward_model) if rewards is None else rewards,
        reference=reference,
        critic=critic,
        environments=workers.environments(),
        gpus=whole_gpus(min(shares, workers.cluster.num_gpus())),
        side_by_side=have_own_places(workers.recipe, workers.device),
    )


def _critic_start(init: str, recipe: Recipe, policy: Path, reward_model: Path | None) -> Path:
    """Return the directory that ``rl.critic.init`` names."""
    name = brought_model(init)
    if name is not None:
        model = recipe.reward_models[name]
        directory = located(name, model)
        check_reads_ids(f"reward_models.{name}.path = '{model.path}'", directory, policy)
        return directory
    start = reward_model if init == REWARD_MODEL else policy
    assert start is not None, "the recipe trains the reward model that the critic starts from"
    return start


def have_own_places(recipe: Recipe, device: str) -> bool:
    """Return whether the ranks of policy, reference and critic each have their own GPU, or cores.
    On fewer they would take from each other: of GPUs the memory, of cores the time.

    Cores are counted on this machine; of those of a cluster that is joined nothing is known here.
    """
    hardware, critic = recipe.hardware, recipe.rl.critic is not None
    reference = hardware.learner.reference_ranks if recipe.has_reference_worker else 0
    if hardware.cluster != "ray" or not (reference or critic):
        return False
    if device == "cuda":
        return hardware.learner.gpus_per_rank >= 1
    ranks = hardware.learner.ranks * (1 + critic) + reference
    cores = len(os.sched_getaffinity(0))
    return hardware.ray_address is None and ranks * hardware.learner.threads <= cores

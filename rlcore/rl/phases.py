"""The five phases of one RL iteration. Each reads refs, computes, and writes a ref.

    rollout -> reward -> advantage -> update -> sync

rollout, reward and advantage are idempotent: asked again for the same iteration they return the
recorded artifact. update is a compare-and-set on the learner's weight version. sync ends the
iteration: engines get the new weights and prove it, validation runs when due, and the checkpoint
is published last.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.learner.group import LearnerGroup
from rlcore.rewards.group import RewardGroup
from rlcore.rl.advantage import advantages_of
from rlcore.rl.checkpoint import Checkpoints
from rlcore.rl.guards import StaleWeightsError, check_fresh, check_rewards, check_update
from rlcore.rl.metrics import MetricsLog
from rlcore.rl.reward import score_rollouts
from rlcore.rl.rollout import sample_rollouts, validate, validation_prompts
from rlcore.rl.state import LoopState, validation_due
from rlcore.rl.stream import take_prompts
from rlcore.rl.sync import sync_weights
from rlcore.rl.update import update_request
from rlcore.rollout.group import RolloutGroup
from rlcore.store import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Crew:
    """The long-lived workers of one RL run; ``reference`` only when the KL term is on."""

    learner: LearnerGroup
    engines: RolloutGroup
    rewards: RewardGroup
    reference: LearnerGroup | None


class Phases:
    """One RL run: recipe, data, workers and store; ``key`` names it in the store."""

    # Slots keep an orchestrator that encodes a call's arguments from walking through tables.
    __slots__ = (
        "checkpoints",
        "crew",
        "dead_updates",
        "key",
        "lineage",
        "log",
        "metrics",
        "recipe",
        "store",
        "tokenizer",
        "train",
        "validation",
    )

    def __init__(
        self,
        recipe: Recipe,
        *,
        store: ArtifactStore,
        key: str,
        lineage: Lineage,
        prompts: pl.DataFrame,
        tokenizer: Any,
        crew: Crew,
        log: Callable[[str], None],
    ) -> None:
        self.recipe = recipe
        self.store = store
        self.key = key
        self.lineage = lineage
        self.crew = crew
        self.log = log
        self.tokenizer = tokenizer
        self.train = prompts.filter(pl.col("split") == "train")
        self.validation = validation_prompts(prompts, recipe.rl.validation.prompts, recipe.seed)
        self.dead_updates = 0
        self.checkpoints = Checkpoints(store, key, lineage, recipe.rl.checkpoint)
        self.metrics = MetricsLog(store, key, lineage)

    def start(self) -> LoopState:
        """Return the state to continue from, with learner and engines holding its weights."""
        state = self.checkpoints.restore(self.crew.learner, log=self.log) or LoopState()
        stamp = sync_weights(self.crew.learner, self.crew.engines)
        if state.accuracies and stamp.digest != state.digest:
            raise StaleWeightsError(
                f"checkpoint {state.iteration} holds weights {stamp.digest[:12]} and its state says"
                f" {state.digest[:12]}; delete it from the store and rerun"
            )
        if not state.accuracies:
            state = self._validated(replace(state, version=stamp.version, digest=stamp.digest))
            self.metrics.publish(0)
            self.checkpoints.publish(self.crew.learner, state)
        self.metrics.begin_step()
        return state

    def rollout(self, state: LoopState) -> ArtifactRef:
        """Sample ``rl.rollout.prompts`` x ``samples`` trajectories and record them."""
        iteration = state.next_iteration
        with self.metrics.timed("gen"):
            if found := self._recorded("rollouts", iteration, {}):
                sampled = self.store.table(found, "rollouts")
                if set(sampled["weight_digest"]) == {state.digest}:
                    return found
                self.log(f"rollouts {iteration} came from other weights; they are sampled anew")
                self.store.discard("rollouts", self._key(iteration))
            section = self.recipe.rl.rollout
            rows = take_prompts(
                self.train.height, cursor=state.cursor, count=section.prompts, seed=self.recipe.seed
            )
            rollouts = sample_rollouts(
                self.train[rows],
                self.crew.engines,
                section,
                tokenizer=self.tokenizer,
                iteration=iteration,
                seed=self.recipe.seed,
            )
            return self._put("rollouts", iteration, {"rollouts": rollouts}, {})

    def reward(self, state: LoopState, rollouts: ArtifactRef) -> ArtifactRef:
        """Score the rollouts in the reward workers."""
        iteration = state.next_iteration
        with self.metrics.timed("reward"):
            if found := self._recorded("rewards", iteration, {"rollouts": rollouts}):
                return found
            rewards = score_rollouts(
                self.store.table(rollouts, "rollouts"), self.train, self.crew.rewards
            )
            check_rewards(rewards, max_error_fraction=self.recipe.reward.max_error_fraction)
            return self._put("rewards", iteration, {"rewards": rewards}, {"rollouts": rollouts})

    def advantage(
        self, state: LoopState, rollouts: ArtifactRef, rewards: ArtifactRef
    ) -> ArtifactRef:
        """Recompute log-probs under learner and reference, check them, estimate advantages."""
        iteration = state.next_iteration
        with self.metrics.timed("adv"):
            sampled = self.store.table(rollouts, "rollouts")
            check_fresh(sampled, self.crew.learner.stamp())
            frame, metrics = advantages_of(
                sampled,
                self.store.table(rewards, "rewards"),
                learner=self.crew.learner,
                reference=self.crew.reference,
                rl=self.recipe.rl,
            )
            self.metrics.add(metrics)
            parents = {"rollouts": rollouts, "rewards": rewards}
            if found := self._recorded("advantages", iteration, parents):
                return found
            return self._put("advantages", iteration, {"advantages": frame}, parents)

    def update(self, state: LoopState, rollouts: ArtifactRef, advantages: ArtifactRef) -> int:
        """Step the learner once per mini-batch and return its new weight version."""
        with self.metrics.timed("update_actor"):
            request = update_request(
                self.store.table(rollouts, "rollouts"),
                self.store.table(advantages, "advantages"),
                recipe=self.recipe,
                version=state.version,
                batch_digest=advantages.sha256,
            )
            result = self.crew.learner.update(request)
            self.metrics.add_missing(result.metrics)
            self.dead_updates = check_update(result.metrics, self.dead_updates, log=self.log)
            return result.version

    def sync(self, state: LoopState, version: int) -> LoopState:
        """Load the new weights into every engine, validate when due, publish the checkpoint."""
        with self.metrics.timed("sync"):
            stamp = sync_weights(self.crew.learner, self.crew.engines)
            assert stamp.version == version, f"learner published {stamp.version}, not {version}"
            state = replace(
                state,
                iteration=state.next_iteration,
                cursor=state.cursor + self.recipe.rl.rollout.prompts,
                version=version,
                digest=stamp.digest,
            )
            if validation_due(state, self.recipe.rl):
                state = self._validated(state)
            self.metrics.publish(state.iteration)
            if self._checkpoint_due(state):
                self.checkpoints.publish(self.crew.learner, state)
        self.metrics.end_step(state.iteration)
        return state

    def finish(self, state: LoopState, directory: Path) -> None:
        """Export the best checkpoint's policy into ``directory``; close the metrics.

        Best by greedy validation accuracy, a tie going to the later iteration.
        """
        (best,) = state.best()
        if best != state.iteration or self.crew.learner.stamp().digest != state.digest:
            self.checkpoints.load(self.crew.learner, best)
        self.crew.learner.export_hf(directory)
        self.metrics.close()

    def _validated(self, state: LoopState) -> LoopState:
        with self.metrics.timed("testing"):
            accuracy, metrics = validate(
                self.validation,
                self.crew.engines,
                self.crew.rewards,
                self.recipe.rl.rollout,
                tokenizer=self.tokenizer,
            )
        self.metrics.add(metrics)
        return state.validated(accuracy, self.recipe.rl)

    def _recorded(
        self, kind: str, iteration: int, parents: dict[str, ArtifactRef]
    ) -> ArtifactRef | None:
        """Return what an earlier attempt recorded from the same ``parents``; drop anything else."""
        key = self._key(iteration)
        found = self.store.find_or_discard(kind, key, self.log)
        if found is None:
            return None
        made_from = self.store.manifest(found).parents
        if all(made_from[role].sha256 == ref.sha256 for role, ref in parents.items()):
            return found
        self.store.discard(kind, key)
        return None

    def _checkpoint_due(self, state: LoopState) -> bool:
        """Validated weights are always kept: they may turn out the best."""
        rl = self.recipe.rl
        on_schedule = state.iteration % rl.checkpoint.every == 0
        return on_schedule or validation_due(state, rl) or state.finished(rl)

    def _key(self, iteration: int) -> str:
        return f"{self.key}/{iteration:06d}"

    def _put(
        self,
        kind: str,
        iteration: int,
        tables: dict[str, pl.DataFrame],
        parents: dict[str, ArtifactRef],
    ) -> ArtifactRef:
        lineage = replace(self.lineage, parents={**self.lineage.parents, **parents})
        return self.store.put(kind, self._key(iteration), tables=tables, lineage=lineage)

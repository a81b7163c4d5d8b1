"""The five phases of one RL iteration. Each reads refs, computes, and writes a ref.

    rollout -> reward -> advantage -> update -> sync

rollout and reward repeat in rounds until the batch of groups is full (``groups``). rollout, reward
and advantage are idempotent: asked again for the same iteration they return the recorded artifact.
update is a compare-and-set on the learners' weight versions. sync ends the iteration: engines get
the new weights and prove it, validation runs when due, and the checkpoint is published last.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.algorithms.kl import adaptive_coef
from rlcore.models.packing import Sequences
from rlcore.ragged import to_arrays
from rlcore.rl.advantage import advantages_of, signal_of
from rlcore.rl.answers import RecentAnswers
from rlcore.rl.batch import RolloutBatch, concat_batches
from rlcore.rl.checkpoint import Checkpoints
from rlcore.rl.groups import Groups, split_by_signal
from rlcore.rl.guards import (
    StaleWeightsError,
    check_fresh,
    check_rewards,
    check_sampler_gap,
)
from rlcore.rl.metrics import MetricsLog
from rlcore.rl.own_logprobs import own_logprobs
from rlcore.rl.records import Records
from rlcore.rl.reward import score_rollouts
from rlcore.rl.rollout import sample_rollouts, validate, validation_prompts
from rlcore.rl.scores import BatchScores, mean_sequence_kl, score_batch
from rlcore.rl.state import LoopState, validation_due
from rlcore.rl.stream import draw_round
from rlcore.rl.sync import CANARY_GAP, Canary, sync_weights
from rlcore.rl.update import UpdateBatch, critic_request, policy_request, update_metrics
from rlcore.rl.workers import RLWorkers
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe


class Phases:
    """One RL run: recipe, data, workers and store; ``key`` names it in the store."""

    # Slots keep an orchestrator that encodes a call's arguments from walking through tables.
    __slots__ = (
        "answers",
        "canary",
        "checkpoints",
        "log",
        "metrics",
        "ptx",
        "recipe",
        "records",
        "store",
        "tokenizer",
        "train",
        "validation",
        "workers",
    )

    def __init__(
        self,
        recipe: Recipe,
        *,
        store: ArtifactStore,
        key: str,
        lineage: Lineage,
        prompts: pl.DataFrame,
        ptx: Sequences | None,
        tokenizer: Any,
        workers: RLWorkers,
        log: Callable[[str], None],
    ) -> None:
        """``ptx``: what PPO-ptx draws from, where the recipe has it."""
        self.recipe = recipe
        self.store = store
        self.workers = workers
        self.log = log
        self.tokenizer = tokenizer
        self.train = prompts.filter(pl.col("split") == "train")
        self.validation = validation_prompts(prompts, recipe.rl.validation.prompts, recipe.seed)
        self.ptx = ptx
        self.canary = Canary.of_prompts(self.train, recipe)
        self.records = Records(store, key, lineage, log)
        self.checkpoints = Checkpoints(store, key, lineage, recipe.rl.checkpoint)
        self.metrics = MetricsLog(store, key, lineage)
        self.answers = RecentAnswers(store, key, least=recipe.rl.rollout.prompts)

    def start(self) -> LoopState:
        """Return the state to continue from, with learners and engines holding its weights."""
        restored = self.checkpoints.restore(self.workers.trained, log=self.log)
        state = restored or LoopState.initial(self.recipe.rl)
        synced = sync_weights(self.workers.learner, self.workers.engines, self.canary)
        stamp = synced.stamp
        if state.accuracies and stamp.digest != state.digest:
            raise StaleWeightsError(
                f"checkpoint {state.iteration} holds weights {stamp.digest[:12]} and its state says"
                f" {state.digest[:12]}; delete it from the store and rerun"
            )
        if not state.accuracies:
            self.metrics.add({CANARY_GAP: synced.canary_gap})
            state = self._validated(replace(state, version=stamp.version, digest=stamp.digest))
            self.metrics.publish(0)
            self.checkpoints.publish(self.workers.trained, state)
        self.metrics.begin_step()
        return state

    def begin(self, state: LoopState) -> Groups:
        """Return the empty batch of the iteration that follows ``state``."""
        return Groups(wanted=self.recipe.rl.rollout.prompts)

    def rollout(self, state: LoopState, groups: Groups) -> ArtifactRef:
        """Sample one round of trajectories, and greedy baselines where wanted; record them."""
        name = self.records.name(state.next_iteration, groups.suffix)
        with self.metrics.timed("gen"):
            if found := self.records.find("rollouts", name):
                sampled = self.store.table(found, "rollouts")
                if set(sampled["weight_digest"]) == {state.digest}:
                    return found
                self.log(f"rollouts {name} came from other weights; they are sampled anew")
                self.store.discard("rollouts", name)
            prompts = self.train[self._round_rows(state, groups)]
            tables = {"rollouts": self._sample(prompts, state)}
            if self.recipe.rl.rollout.greedy_baseline:
                tables["baselines"] = self._sample(prompts, state, greedy=True)
            return self.records.put("rollouts", name, tables)

    def reward(self, state: LoopState, rollouts: ArtifactRef) -> ArtifactRef:
        """Score one round's trajectories, and its baselines, in the reward workers."""
        with self.metrics.timed("reward"):
            parents = {"rollouts": rollouts}
            if found := self.records.find("rewards", rollouts.key, parents):
                return found
            tables = {}
            for table, scored in (("rollouts", "rewards"), ("baselines", "baseline_rewards")):
                if table in rollouts.rows:
                    sampled = self.store.table(rollouts, table)
                    tables[scored] = score_rollouts(sampled, self.train, self.workers.rewards)
            check_rewards(tables["rewards"], self.recipe.reward)
            return self.records.put("rewards", rollouts.key, tables, parents)

    def collect(
        self, state: LoopState, groups: Groups, rollouts: ArtifactRef, rewards: ArtifactRef
    ) -> Groups:
        """Return ``groups`` with a round's groups added: all of them, or those with a signal."""
        section = self.recipe.rl.algorithm.dynamic_sampling
        batch = self._round(rollouts, rewards)
        uids = batch.rollouts["uid"].unique(maintain_order=True).to_list()
        drawn = self._round_size
        if section is None:
            return groups.with_round(rollouts, rewards, passing=uids, failing=[], drawn=drawn)
        signal = signal_of(
            batch,
            section.metric,
            rl=self.recipe.rl,
            kl_coef=state.kl_coef,
            scores=self._scores(batch) if section.metric == "final_score" else None,
        )
        passing, failing = split_by_signal(
            batch.rollouts["uid"].to_numpy(), signal, tolerance=section.tolerance
        )
        grown = groups.with_round(rollouts, rewards, passing=passing, failing=failing, drawn=drawn)
        return grown.settled(section, more_prompts=len(self._round_rows(state, grown)) > 0)

    def advantage(self, state: LoopState, groups: Groups) -> ArtifactRef:
        """Recompute log-probs under learner and reference, check them, estimate advantages."""
        with self.metrics.timed("adv"):
            drawn = self._drawn(groups)
            batch = drawn.only(groups.kept)
            check_fresh(batch.rollouts, self.workers.learner.stamp())
            scores = self._scores(batch)
            self.metrics.add(
                check_sampler_gap(
                    to_arrays(batch.rollouts["sampler_logprobs"]),
                    scores.old,
                    scores.masks,
                    bound=self.recipe.sampler_gap_bound,
                )
            )
            frame, metrics = advantages_of(batch, scores, rl=self.recipe.rl, kl_coef=state.kl_coef)
            self.metrics.add(metrics | groups.metrics())
            self.metrics.add(self.answers.metrics(state.next_iteration, drawn))
            parents = _parents(groups)
            name = self.records.name(state.next_iteration)
            if found := self.records.find("advantages", name, parents):
                return found
            kl = None if scores.kl is None else mean_sequence_kl(scores.kl, scores.masks)
            metadata = {"kl": kl, "trajectories": batch.rollouts.height}
            return self.records.put("advantages", name, {"advantages": frame}, parents, metadata)

    def update(self, state: LoopState, groups: Groups, advantages: ArtifactRef) -> LoopState:
        """Step policy and critic once per mini-batch; return the state with what changed.

        The policy rests while the critic warms up (SPEC A16). Which of the two goes first makes no
        difference: advantages and returns are fixed by now.
        """
        batch = UpdateBatch(
            rollouts=self._batch(groups).rollouts,
            advantages=self.store.table(advantages, "advantages"),
            iteration=state.next_iteration,
            digest=advantages.sha256,
        )
        version = state.version
        if state.trains_policy(self.recipe.rl):
            with self.metrics.timed("update_actor"):
                request = policy_request(
                    batch,
                    recipe=self.recipe,
                    version=version,
                    ptx=self.ptx,
                )
                result = self.workers.learner.update(request)
                if result.old_logprobs:
                    frame, gap = own_logprobs(batch, self.recipe, result.old_logprobs)
                    self.metrics.add(gap)
                    self.records.replace(
                        "own_logprobs",
                        advantages.key,
                        {"own_logprobs": frame},
                        {"advantages": advantages},
                    )
            self.metrics.add_missing(update_metrics("actor", request, result))
            version = result.version
        if self.workers.critic is not None:
            with self.metrics.timed("update_critic"):
                request = critic_request(batch, recipe=self.recipe, version=state.iteration)
                critic = update_metrics("critic", request, self.workers.critic.update(request))
            self.metrics.add_missing(
                {name: v for name, v in critic.items() if not name.startswith("perf/")}
            )
        return replace(
            state,
            version=version,
            cursor=state.cursor + groups.drawn,
            kl_coef=self._next_kl_coef(state, advantages),
        )

    def sync(self, state: LoopState) -> LoopState:
        """Load the new weights into every engine, validate when due, publish the checkpoint."""
        with self.metrics.timed("sync"):
            synced = sync_weights(self.workers.learner, self.workers.engines, self.canary)
            self.metrics.add({CANARY_GAP: synced.canary_gap})
            assert synced.stamp.version == state.version, (
                f"learner published {synced.stamp.version}, not {state.version}"
            )
            state = replace(state, iteration=state.next_iteration, digest=synced.stamp.digest)
            if validation_due(state, self.recipe.rl):
                state = self._validated(state)
            self.metrics.publish(state.iteration)
            if self._checkpoint_due(state):
                self.checkpoints.publish(self.workers.trained, state)
        self.metrics.end_step(state.iteration)
        return state

    def finish(self, state: LoopState, directory: Path) -> None:
        """Export the best checkpoint's policy into ``directory``; close the metrics.

        Best by the figure of greedy validation, a tie going to the later iteration.
        """
        (best,) = state.best()
        if best != state.iteration or self.workers.learner.stamp().digest != state.digest:
            self.checkpoints.load(self.workers.trained, best)
        self.workers.learner.export_hf(directory)
        self.metrics.close()

    @property
    def _round_size(self) -> int:
        """Prompts of one generation round; at most all there are."""
        rl = self.recipe.rl
        dynamic = rl.algorithm.dynamic_sampling
        if dynamic is None:
            return rl.rollout.prompts
        return max(
            rl.rollout.prompts, min(rl.rollout.prompts * dynamic.batch_factor, self.train.height)
        )

    def _round_rows(self, state: LoopState, groups: Groups) -> list[int]:
        return draw_round(
            self.train.height,
            cursor=state.cursor,
            drawn=groups.drawn,
            count=self._round_size,
            seed=self.recipe.seed,
        ).tolist()

    def _sample(
        self, prompts: pl.DataFrame, state: LoopState, *, greedy: bool = False
    ) -> pl.DataFrame:
        return sample_rollouts(
            prompts,
            self.workers.engines,
            self.recipe.rl.rollout,
            tokenizer=self.tokenizer,
            iteration=state.next_iteration,
            seed=self.recipe.seed,
            greedy=greedy,
        )

    def _scores(self, batch: RolloutBatch) -> BatchScores:
        return score_batch(
            batch.rollouts,
            temperature=self.recipe.rl.rollout.temperature,
            kl=self.recipe.rl.algorithm.kl,
            learner=self.workers.learner,
            reference=self.workers.reference,
            critic=self.workers.critic,
        )

    def _round(self, rollouts: ArtifactRef, rewards: ArtifactRef) -> RolloutBatch:
        """Read one round's tables."""
        baselines = None
        if "baselines" in rollouts.rows:
            greedy = self.store.table(rollouts, "baselines").select("trajectory_id", "uid")
            scored = self.store.table(rewards, "baseline_rewards")
            baselines = greedy.join(scored, on="trajectory_id").select("uid", "score")
        return RolloutBatch(
            self.store.table(rollouts, "rollouts"), self.store.table(rewards, "rewards"), baselines
        )

    def _drawn(self, groups: Groups) -> RolloutBatch:
        """Return every group of all rounds."""
        return concat_batches([self._round(*refs) for refs in groups.rounds])

    def _batch(self, groups: Groups) -> RolloutBatch:
        """Return the kept groups of all rounds."""
        return self._drawn(groups).only(groups.kept)

    def _next_kl_coef(self, state: LoopState, advantages: ArtifactRef) -> float | None:
        """Return the coefficient after this iteration; the one used was the one before (K5)."""
        kl = self.recipe.rl.algorithm.kl
        if state.kl_coef is None or kl.controller == "fixed":
            return state.kl_coef
        seen = self.store.manifest(advantages).metadata
        return adaptive_coef(
            state.kl_coef,
            seen["kl"],
            target=kl.target,
            num_sequences=seen["trajectories"],
            horizon=kl.horizon,
        )

    def _validated(self, state: LoopState) -> LoopState:
        if not self.validation.height:  # nothing to tell policies apart by: the last is the best
            return state.validated(0.0, self.recipe.rl)
        with self.metrics.timed("testing"):
            figure, metrics = validate(
                self.validation,
                self.workers.engines,
                self.workers.rewards,
                self.recipe.rl.rollout,
                tokenizer=self.tokenizer,
                reward=self.recipe.reward,
            )
        self.metrics.add(metrics)
        return state.validated(figure, self.recipe.rl)

    def _checkpoint_due(self, state: LoopState) -> bool:
        """Validated weights are always kept: they may turn out the best."""
        rl = self.recipe.rl
        on_schedule = state.iteration % rl.checkpoint.every == 0
        return on_schedule or validation_due(state, rl) or state.finished(rl)


def _parents(groups: Groups) -> dict[str, ArtifactRef]:
    """Return the roles of all rounds: rollouts, rewards, rollouts-1, rewards-1, ..."""
    return {
        f"{role}{f'-{index}' if index else ''}": ref
        for index, refs in enumerate(groups.rounds)
        for role, ref in zip(("rollouts", "rewards"), refs, strict=True)
    }

"""The five phases of one RL iteration. Each reads refs, computes, and writes a ref.

    rollout -> reward -> advantage -> update -> sync

rollout and reward repeat in rounds until the batch of groups is full (``groups``). rollout, reward
and advantage are idempotent: asked again for the same iteration they return the recorded artifact.
update is a compare-and-set on the learners' weight versions. sync ends the iteration: engines get
the new weights and prove it, validation runs when due, and the checkpoint, whose files are written
while the next rollout begins, is published last.
"""

from dataclasses import replace

import polars as pl

from rlcore.ragged import to_arrays
from rlcore.rewards.types import is_finished
from rlcore.rl.advantage import Advantages, advantages_of, signal_of
from rlcore.rl.batch import RolloutBatch, round_of
from rlcore.rl.groups import Groups, split_by_signal
from rlcore.rl.guards import (
    check_fresh,
    check_rewards,
)
from rlcore.rl.metrics import RECORD
from rlcore.rl.records import PACKED_FOR
from rlcore.rl.reward import score_rollouts
from rlcore.rl.rollout import greedy_tables, sample_rollouts
from rlcore.rl.scores import BatchScores, mean_sequence_kl, score_batch
from rlcore.rl.state import LoopState, validation_due
from rlcore.rl.sync import CANARY_GAP, sync_weights
from rlcore.rl.training import Training
from rlcore.rl.turns import EpisodeCredit
from rlcore.rl.update import UpdateBatch
from rlcore.trajectories.types import Trajectory
from schemas.artifacts import ArtifactRef


class Phases(Training):
    """The phases of one RL run, each idempotent."""

    __slots__ = ()

    def begin(self, state: LoopState) -> Groups:
        """Return the empty batch of the iteration that follows ``state``."""
        return Groups(wanted=self.recipe.rl.rollout.prompts)

    def rollout(self, state: LoopState, groups: Groups) -> ArtifactRef:
        """Sample one round of trajectories, and greedy baselines where wanted; record them."""
        name = self.records.name(state.next_iteration, groups.suffix)
        with self.metrics.timed("gen"):
            weights = self.history.parent(state.iteration, "weights")
            if found := self.records.find("rollouts", name, weights):
                sampled = self.store.table(found, "rollouts")
                if set(sampled["weight_digest"]) == {state.digest}:
                    return found
                self.log(f"rollouts {name} came from other weights; they are sampled again")
                self.store.discard("rollouts", name)
            prompts = self.stream.round(cursor=state.cursor, drawn=groups.drawn)
            tables = self._sample(prompts, state)
            if self.recipe.rl.rollout.greedy_baseline:
                tables |= greedy_tables(tables, self._sample(prompts, state, greedy=True))
            return self.records.put("rollouts", name, tables, weights)

    def reward(self, state: LoopState, rollouts: ArtifactRef) -> ArtifactRef:
        """Score one round's trajectories, and its baselines, in the reward workers."""
        with self.metrics.timed("reward"):
            parents = {"rollouts": rollouts}
            if found := self.records.find("rewards", rollouts.key, parents):
                return found
            episodes = None
            if "episodes" in rollouts.rows:
                episodes = self.store.table(rollouts, "episodes")
            tables = {}
            for table, scored in (("rollouts", "rewards"), ("baselines", "baseline_rewards")):
                if table in rollouts.rows:
                    sampled = self.store.table(rollouts, table)
                    tables[scored] = score_rollouts(
                        sampled,
                        self.train.of_uids(sampled["uid"].to_list()),
                        self.workers.rewards,
                        episodes,
                    )
            check_rewards(tables["rewards"], self.recipe.reward)
            return self.records.put("rewards", rollouts.key, tables, parents)

    def collect(
        self, state: LoopState, groups: Groups, rollouts: ArtifactRef, rewards: ArtifactRef
    ) -> Groups:
        """Return ``groups`` with a round's groups added: all of them, or those with a signal."""
        section = self.recipe.rl.algorithm.dynamic_sampling
        batch = round_of(self.store, rollouts, rewards)
        uids = batch.rollouts["uid"].unique(maintain_order=True).to_list()
        drawn = self.stream.round_size
        if section is None:
            return groups.with_round(rollouts, rewards, passing=uids, failing=[], drawn=drawn)
        reads_kl = section.metric == "final_score" and state.kl_coef is not None
        signal = signal_of(
            batch,
            section.metric,
            rl=self.recipe.rl,
            kl_coef=state.kl_coef,
            scores=self._scores(batch) if reads_kl else None,
            episodes=EpisodeCredit.of(self.recipe),
        )
        passing, failing, unscored = split_by_signal(
            batch.rollouts["uid"].to_numpy(), signal, tolerance=section.tolerance
        )
        grown = groups.with_round(
            rollouts, rewards, passing=passing, failing=failing, unscored=unscored, drawn=drawn
        )
        left = self.stream.round(cursor=state.cursor, drawn=grown.drawn)
        return grown.settled(section, more_prompts=left.height > 0)

    def advantage(self, state: LoopState, groups: Groups) -> Advantages:
        """Recompute log-probs under learner and reference, check them, estimate advantages."""
        with self.metrics.timed("adv"):
            drawn = self.records.drawn(groups)
            batch = drawn.only(groups.kept)
            check_fresh(batch.rollouts, self.workers.learner.stamp())
            rl = self.recipe.rl
            scores = self._scores(batch, fused=rl.update.fused and state.trains_policy(rl))
            if scores.old is not None:
                sampler = to_arrays(batch.rollouts["sampler_logprobs"])
                self.check_sampler(sampler, scores.old, scores.masks)
            frame, metrics = advantages_of(
                batch,
                scores,
                rl=self.recipe.rl,
                kl_coef=state.kl_coef,
                episodes=EpisodeCredit.of(self.recipe),
            )
            self.metrics.add(metrics | groups.metrics())
            self.metrics.add(self.answers.metrics(state.next_iteration, drawn))
            name = self.records.name(state.next_iteration)
            made = groups.parents, {PACKED_FOR: self.recipe.hardware.learner.micro_batch_tokens}
            ref = self.records.find("advantages", name, *made) or self.records.put(
                "advantages", name, {"advantages": frame}, *made
            )
            kl = None if scores.kl is None else mean_sequence_kl(scores.kl, scores.masks)
            return Advantages(ref, kl, batch.rollouts.height)

    def update(self, state: LoopState, groups: Groups, advantages: Advantages) -> LoopState:
        """Step policy and critic once per mini-batch; return the state with what changed.

        The policy rests while the critic warms up. Either may go first, or both at the same time:
        what they learn is fixed.
        """
        batch = UpdateBatch(
            rollouts=self.records.drawn(groups).only(groups.kept).rollouts,
            advantages=self.store.table(advantages.ref, "advantages"),
            iteration=state.next_iteration,
            digest=advantages.ref.sha256,
        )
        version, critic = state.version, None
        if self.workers.critic is not None and self.workers.side_by_side:
            critic = self.start_critic(batch)
        if state.trains_policy(self.recipe.rl):
            version = self.train_policy(batch, version, advantages.ref)
        if self.workers.critic is not None:
            finish = critic or self.start_critic(batch)
            finish()
        return replace(
            state,
            version=version,
            cursor=state.cursor + groups.drawn,
            kl_coef=state.next_kl_coef(
                self.recipe.rl.algorithm.kl, advantages.mean_kl, advantages.num_sequences
            ),
        )

    def sync(self, state: LoopState) -> LoopState:
        """Load the new weights into every engine, validate when due, begin the checkpoint."""
        with self.metrics.timed("sync"):
            synced = sync_weights(self.workers.learner, self.workers.engines, self.canary)
            self.metrics.add({CANARY_GAP: synced.canary_gap})
            assert synced.stamp.version == state.version, (
                f"learner published {synced.stamp.version}, not {state.version}"
            )
        before = state.digest
        state = replace(state, iteration=state.next_iteration, digest=synced.stamp.digest)
        if validation_due(state, self.recipe.rl):
            state = self.validated(state)
        with self.metrics.timed(RECORD):
            self.history.extend(before, state, synced.tensors)
        self.metrics.publish(state.iteration)
        if self.checkpoint_due(state):
            self.save(state)
        self.metrics.end_step(state.iteration)
        return state

    def _sample(
        self, prompts: pl.DataFrame, state: LoopState, *, greedy: bool = False
    ) -> dict[str, pl.DataFrame]:
        return sample_rollouts(
            prompts,
            self.workers.engines,
            self.recipe.rl.rollout,
            tokenizer=self.tokenizer,
            stop_ids=self.stop_ids,
            iteration=state.next_iteration,
            seed=self.recipe.seed,
            greedy=greedy,
            done=self._start_scoring,
            episodes=self.episodes,
        )

    def _start_scoring(self, trajectory: Trajectory) -> None:
        """Let the reward workers score a row while the engines sample the others."""
        if is_finished(row := trajectory.reward_row()):
            self.workers.rewards.start(row)

    def _scores(self, batch: RolloutBatch, *, fused: bool = False) -> BatchScores:
        return score_batch(
            batch.rollouts,
            temperature=self.recipe.rl.rollout.temperature,
            kl=self.recipe.rl.algorithm.kl,
            learner=self.workers.learner,
            reference=self.workers.reference,
            critic=self.workers.critic,
            fused=fused,
            side_by_side=self.workers.side_by_side,
        )

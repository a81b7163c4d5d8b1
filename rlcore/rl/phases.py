"""One RL run: how it starts, the five phases of an iteration, and how it ends.

    rollout -> reward -> advantage -> update -> sync

Each phase reads refs, computes, and writes a ref. rollout and reward repeat in rounds until the
batch of groups is full (``groups``). rollout, reward and advantage are idempotent: asked again for
the same iteration they return the recorded artifact. update is a compare-and-set on the learners'
weight versions. sync ends the iteration: engines get the new weights and prove it, validation runs
when due, and the checkpoint, whose files are written while the next rollout begins, is published
last.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.cluster.progress import activity
from rlcore.models.packing import Sequences
from rlcore.models.ragged import to_arrays
from rlcore.rewards.types import is_finished
from rlcore.rl.advantage import Advantages, advantages_table, signal_of, with_advantages
from rlcore.rl.batch import arrays_of, drawn, of_prompts
from rlcore.rl.fork import ROLE, Fork
from rlcore.rl.groups import DrawnGroups, split_by_signal
from rlcore.rl.guards import StaleWeightsError, check_fresh, check_rewards, check_sampler_gap
from rlcore.rl.memory_probe import probe_memory
from rlcore.rl.metrics import RECORD, SAVE, MetricsLog
from rlcore.rl.prompts import PromptRows, PromptStream
from rlcore.rl.records import PACKED_FOR, History, RunRecords
from rlcore.rl.reward import score_rollouts
from rlcore.rl.roles import RLWorkers
from rlcore.rl.rollout import greedy_tables, sample_rollouts
from rlcore.rl.scores import mean_sequence_kl, with_scores
from rlcore.rl.state import LoopState, RLCheckpoints, validation_due
from rlcore.rl.sync import CANARY_GAP, CANARY_TOKENS, Canary, sync_weights
from rlcore.rl.training import RLTraining
from rlcore.rl.unsolved_prompts import RecentAnswers
from rlcore.rl.validation import Validation, validation_prompts
from rlcore.rollout.episodes import episodes_of
from rlcore.rollout.trajectories import Trajectory
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe


class Phases:
    """The phases of one RL run, each idempotent, over its parts: ``workers``, ``records``,
    ``history``, ``metrics``, ``checkpoints``."""

    # Slots keep an orchestrator that encodes a call's arguments from walking through tables.
    __slots__ = (
        *("_fork", "_stop_ids", "answers", "canary", "checkpoints"),
        *("episodes", "history", "log", "metrics", "recipe", "records", "store", "stream"),
        *("ptx", "tokenizer", "train", "training", "validation", "workers"),
    )

    def __init__(
        self,
        recipe: Recipe,
        *,
        store: ArtifactStore,
        key: str,
        lineage: Lineage,
        prompts: PromptRows,
        ptx: Sequences | None,
        tokenizer: Any,
        stop_ids: tuple[int, ...],
        workers: RLWorkers,
        log: Callable[[str], None],
    ) -> None:
        """``key`` names the run in the store. ``ptx``: what PPO-ptx draws from, where the recipe
        has it. ``stop_ids``: what ends a turn of the policy (``models.stop_tokens``)."""
        self.recipe, self.store, self.workers, self.log = recipe, store, workers, log
        self.tokenizer, self._stop_ids, self.ptx = tokenizer, stop_ids, ptx
        self.train = prompts.of_split("train")
        self.episodes = episodes_of(recipe, workers.engines, workers.environments, tokenizer)
        self.stream = PromptStream(self.train, recipe.rl, recipe.seed)
        self.validation = Validation(
            validation_prompts(prompts, recipe.rl.validation.prompts, recipe.seed),
            workers.engines,
            workers.rewards,
            tokenizer,
            stop_ids,
            recipe.rl.rollout,
            recipe.reward,
            self.episodes,
        )
        self.canary = Canary.of_prompts(self.train.head(CANARY_TOKENS), recipe)
        self._fork = None if recipe.rl.fork is None else Fork(recipe.rl.fork, store)
        self.records = RunRecords(store, key, lineage, log)
        self.history = History(self.records)
        self.checkpoints = RLCheckpoints(store, key, lineage, recipe.rl)
        self.metrics = MetricsLog(store, key, lineage)
        self.training = RLTraining(recipe, workers, self.records, self.metrics, ptx)
        self.answers = RecentAnswers(store, key, least=recipe.rl.rollout.prompts)

    def start(self) -> LoopState:
        """Return the state to continue from, with learners and engines holding its weights."""
        restored = self.checkpoints.restore(self.workers.trained, log=self.log)
        state = restored or self._initial()
        # Also after a restore: a new engine holds noise until it is loaded.
        synced = sync_weights(self.workers.learner, self.workers.engines, self.canary)
        stamp = synced.stamp
        if state.digest and stamp.digest != state.digest:
            raise StaleWeightsError(
                f"checkpoint {state.iteration} holds weights {stamp.digest[:12]} and its state says"
                f" {state.digest[:12]}; delete it from the store and rerun"
            )
        # RL begins: its start is validated, recorded and saved, as the end of an iteration is.
        if not state.accuracies:
            self.metrics.add({CANARY_GAP: synced.canary_gap})
            state = self._validated(replace(state, version=stamp.version, digest=stamp.digest))
            with self.metrics.timed(RECORD):
                forked = {} if self._fork is None else {ROLE: self._fork.record()}
                self.history.begin(state, synced.tensors, forked)
            self.metrics.publish(state.iteration)
            self.save(state)
        first = 0 if self._fork is None else self._fork.number
        if state.iteration == first and not state.finished(self.recipe.rl):
            self._probe(state)
        self.metrics.begin_step(self.workers.gpus, self.workers.peaks())
        return state

    def _initial(self) -> LoopState:
        """Return the state before the first iteration, which is another run's in a fork."""
        if self._fork is None:
            return LoopState.initial(self.recipe.rl)
        policy = self.records.lineage.parents.get("policy")
        return self._fork.begin(self.store, self.recipe, self.workers.trained, policy)

    def _probe(self, state: LoopState) -> None:
        """Let learners run out of memory now if they ever do; the checkpoint of ``state`` undoes
        what that changes."""
        with activity("the step that tries the memory"):
            shown = self.train.with_shortest(self.recipe.model.max_tokens)
            probe_memory(self.recipe, self.workers, state, prompts=shown, ptx=self.ptx)
        self.checkpoints.load(self.workers.trained, state.iteration)
        held = self.workers.learner.stamp()
        assert (held.version, held.digest) == (state.version, state.digest), "the probe is undone"

    def begin(self, state: LoopState) -> DrawnGroups:
        """Return the empty batch of the iteration that follows ``state``."""
        self.records.forget()
        return DrawnGroups(wanted=self.recipe.rl.rollout.prompts)

    def rollout(self, state: LoopState, groups: DrawnGroups) -> ArtifactRef:
        """Sample one round of trajectories, and greedy baselines where wanted; record them."""
        name = self.records.name(state.next_iteration, groups.suffix)
        with self.metrics.timed("gen"):
            weights = self.history.parent(state.iteration, "weights")
            if found := self.records.find("rollouts", name, weights):
                sampled = self.records.table(found, "rollouts")
                # Recorded by an earlier attempt, which may have been at other weights here.
                if set(sampled["weight_digest"]) == {state.digest}:
                    return found
                self.log(f"rollouts {name} came from other weights; they are sampled again")
                self.records.discard("rollouts", name)
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
                episodes = self.records.table(rollouts, "episodes")
            tables = {}
            for table, scored in (("rollouts", "rewards"), ("baselines", "baseline_rewards")):
                if table in rollouts.rows:
                    sampled = self.records.table(rollouts, table)
                    prompts = self.train.of_uids(sampled["uid"].to_list())
                    tables[scored] = score_rollouts(
                        sampled, prompts, self.workers.rewards, episodes
                    )
            check_rewards(tables["rewards"], self.recipe.reward)
            return self.records.put("rewards", rollouts.key, tables, parents)

    def collect(
        self, state: LoopState, groups: DrawnGroups, rollouts: ArtifactRef, rewards: ArtifactRef
    ) -> DrawnGroups:
        """Return ``groups`` with a round's groups added: all of them, or those with a signal."""
        section = self.recipe.rl.algorithm.dynamic_sampling
        frame = drawn(self.records.table, [(rollouts, rewards)])
        places = self.stream.round_size
        if section is None:
            uids = frame["uid"].unique(maintain_order=True).to_list()
            return groups.with_round(rollouts, rewards, passing=uids, failing=[], drawn=places)
        if section.metric == "final_score" and state.kl_coef is not None:
            frame = with_scores(frame, self.recipe.rl, self.workers)
        signal = signal_of(frame, section.metric, self.recipe, state.kl_coef)
        passing, failing, unscored = split_by_signal(
            frame["uid"].to_numpy(), signal, tolerance=section.tolerance
        )
        grown = groups.with_round(
            rollouts, rewards, passing=passing, failing=failing, unscored=unscored, drawn=places
        )
        left = self.stream.round(cursor=state.cursor, drawn=grown.drawn)
        return grown.close_if_exhausted(section, more_prompts=left.height > 0)

    def advantage(self, state: LoopState, groups: DrawnGroups) -> Advantages:
        """Recompute log-probs under learner and reference, check them, estimate advantages."""
        recipe = self.recipe
        with self.metrics.timed("adv"):
            every = self.records.drawn(groups)
            frame = of_prompts(every, groups.kept)
            # Rows of other weights would get ratios between the wrong policies.
            check_fresh(frame, self.workers.learner.stamp())
            fused = recipe.rl.update.fused and state.trains_policy(recipe.rl)
            frame = with_scores(frame, recipe.rl, self.workers, fused=fused)
            masks = to_arrays(frame["loss_mask"])
            if (old := arrays_of(frame, "old_logprobs")) is not None:
                sampler, bound = to_arrays(frame["sampler_logprobs"]), recipe.sampler_gap_bound
                self.metrics.add(check_sampler_gap(sampler, old, masks, bound=bound))
            frame, metrics = with_advantages(frame, recipe, state.kl_coef)
            self.metrics.add(metrics | groups.metrics())
            self.metrics.add(self.answers.metrics(state.next_iteration, every))
            name = self.records.name(state.next_iteration)
            # Log-probs of another packing round otherwise: other advantages, if by little.
            made = groups.parents, {PACKED_FOR: recipe.hardware.learner.micro_batch_tokens}
            ref = self.records.find("advantages", name, *made) or self.records.put(
                "advantages", name, {"advantages": advantages_table(frame)}, *made
            )
            kl = arrays_of(frame, "kl")
            mean_kl = None if kl is None else mean_sequence_kl(kl, masks)
            return Advantages(ref, mean_kl, frame.height)

    def update(self, state: LoopState, groups: DrawnGroups, advantages: Advantages) -> LoopState:
        """Step policy and critic once per mini-batch; return the state with what changed.

        The policy rests while the critic warms up. Either may go first, or both at the same time:
        what they learn is fixed.
        """
        frame = self.records.trained(groups, advantages.ref)
        version, critic = state.version, None
        if self.workers.critic is not None and self.workers.side_by_side:
            critic = self.training.start_critic(frame, advantages.ref)
        if state.trains_policy(self.recipe.rl):
            version = self.training.train_policy(frame, version, advantages.ref)
        if self.workers.critic is not None:
            finish = critic or self.training.start_critic(frame, advantages.ref)
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
        before, rl = state.digest, self.recipe.rl
        state = replace(state, iteration=state.next_iteration, digest=synced.stamp.digest)
        if validation_due(state, rl):
            state = self._validated(state)
        with self.metrics.timed(RECORD):
            self.history.extend(before, state, synced.tensors)
        self.metrics.publish(state.iteration)
        # The checkpoint is last: a rerun resumes from it, and finds all that it relies on recorded.
        # A kill before it repeats the iteration from its records.
        on_schedule = state.iteration % rl.checkpoint.every == 0
        # Validated weights are always kept: they may turn out the best.
        if on_schedule or validation_due(state, rl) or state.finished(rl):
            self.save(state)
        self.metrics.end_step(state.iteration)
        return state

    def save(self, state: LoopState) -> None:
        """Start to publish the checkpoint of ``state``, once the one before is written."""
        with self.metrics.timed(SAVE):
            self.checkpoints.publish(self.workers.trained, state)

    def finish(self, state: LoopState, directory: Path) -> dict[str, ArtifactRef]:
        """Export the best checkpoint's policy into ``directory``; close the metrics. Return the
        record of its iteration, as a parent.

        Best by the figure of greedy validation, a tie going to the later iteration.
        """
        (best,) = state.best()
        if best != state.iteration or self.workers.learner.stamp().digest != state.digest:
            self.checkpoints.load(self.workers.trained, best)
        self.workers.learner.export_hf(directory)
        self.metrics.close()
        return self.history.parent(best, "best")

    def _validated(self, state: LoopState) -> LoopState:
        """Return ``state`` with what greedy validation says of its weights. Recorded are the
        answers, which show how the policy changes, and their verdicts, for which a judge may have
        been paid."""

        def record(scored: pl.DataFrame, answers: pl.DataFrame) -> None:
            tables = {"validation_rewards": scored, "validation_answers": answers}
            self.records.replace("validation", self.records.name(state.iteration), tables, {})

        with self.metrics.timed("testing"):
            figure, metrics = self.validation.run(record)
        self.metrics.add(metrics)
        return state.validated(figure, self.recipe.rl)

    def _sample(
        self, prompts: pl.DataFrame, state: LoopState, *, greedy: bool = False
    ) -> dict[str, pl.DataFrame]:
        return sample_rollouts(
            prompts,
            self.workers.engines,
            self.recipe.rl.rollout,
            tokenizer=self.tokenizer,
            stop_ids=self._stop_ids,
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

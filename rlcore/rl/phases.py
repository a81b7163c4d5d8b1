"""One RL run: how it starts, the five phases of an iteration, and how it ends.

    rollout -> reward -> advantage -> update -> sync

Each phase reads refs, computes, and writes a ref. rollout and reward repeat in rounds until the
batch of groups is full (``groups``). rollout, reward and advantage are idempotent: asked again for
the same iteration they return the recorded artifact. update is a compare-and-set on the learners'
weight versions. With ``rl.rollout.max_staleness`` the first two phases wait for what a thread has
drawn meanwhile, and sync hands it the new weights (``ahead``).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.cluster.progress import activity
from rlcore.models.packing import Sequences
from rlcore.models.ragged import to_arrays
from rlcore.rl.advantage import Advantages, with_advantages
from rlcore.rl.ahead import Ahead
from rlcore.rl.batch import arrays_of, of_prompts
from rlcore.rl.drawing import Drawing
from rlcore.rl.fork import ROLE, Fork
from rlcore.rl.groups import DrawnGroups
from rlcore.rl.guards import StaleWeightsError, check_fresh, check_sampler_gap
from rlcore.rl.memory_probe import probe_memory
from rlcore.rl.metrics import RECORD, SAVE, WAIT, MetricsLog
from rlcore.rl.prompts import PromptRows, PromptStream
from rlcore.rl.records import PACKED_FOR, RunRecords
from rlcore.rl.roles import RLWorkers
from rlcore.rl.scores import mean_sequence_kl, with_scores
from rlcore.rl.state import LoopState, RLCheckpoints, validation_due
from rlcore.rl.sync import (
    CANARY_GAP,
    CANARY_TOKENS,
    Canary,
    Offered,
    offer_weights,
    sync_weights,
)
from rlcore.rl.training import RLTraining
from rlcore.rl.unsolved_prompts import RecentAnswers
from rlcore.rl.validation import Validation, validation_prompts
from rlcore.rollout.episodes import episodes_of
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.tables import polars_schema
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe

STALENESS = "training/staleness"  # optimizer steps between the policies that sample and that train


class Phases:
    """The phases of one RL run, each idempotent, over its parts: ``workers``, ``records``,
    ``metrics``, ``checkpoints``."""

    # Slots keep an orchestrator that encodes a call's arguments from walking through tables.
    __slots__ = (
        *("_fork", "ahead", "answers", "canary", "checkpoints", "drawing", "log"),
        *("metrics", "ptx", "recipe", "records", "store", "train", "training"),
        *("validation", "workers"),
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
        self.ptx, self.train = ptx, prompts.of_split("train")
        self.records = RunRecords(store, key, lineage, log)
        self.metrics = MetricsLog(store, key, lineage)
        episodes = episodes_of(recipe, workers.engines, workers.environments, tokenizer)
        self.drawing = Drawing(
            recipe,
            self.records,
            self.metrics,
            PromptStream(self.train, recipe.rl, recipe.seed),
            workers,
            tokenizer,
            stop_ids,
            episodes,
        )
        self.validation = Validation(
            validation_prompts(prompts, recipe.rl.validation.prompts, recipe.seed),
            workers.engines,
            workers.rewards,
            tokenizer,
            stop_ids,
            recipe.rl.rollout,
            recipe.reward,
            episodes,
        )
        self.canary = Canary.of_prompts(self.train.head(CANARY_TOKENS), recipe)
        self._fork = None if recipe.rl.fork is None else Fork(recipe.rl.fork, store)
        self.checkpoints = RLCheckpoints(store, key, lineage, recipe.rl)
        self.training = RLTraining(recipe, workers, self.records, self.metrics, ptx)
        self.answers = RecentAnswers(store, key, least=recipe.rl.rollout.prompts)
        self.ahead = Ahead(self.drawing, self.canary) if recipe.rl.rollout.max_staleness else None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let nothing be sampled, recorded or written after the context, which has the lease."""
        with (
            self.checkpoints.writing(self.log),
            self.ahead.running() if self.ahead else nullcontext(),
        ):
            yield

    def start(self) -> LoopState:
        """Return the state to continue from, with learners and engines holding its weights."""
        restored = self.checkpoints.restore(self.workers.trained, log=self.log)
        state = restored or self._initial()
        behind = self._offers_behind(state)
        # Also after a restore: a new engine holds noise until it is loaded.
        synced, gap = sync_weights(
            self.workers.learner, self.workers.engines, self.canary, kept=self._offers_kept
        )
        stamp = synced.published.stamp
        if state.digest and stamp.digest != state.digest:
            raise StaleWeightsError(
                f"checkpoint {state.iteration} holds weights {stamp.digest[:12]} and its state says"
                f" {state.digest[:12]}; delete it from the store and rerun"
            )
        # RL begins: its start is validated, recorded and saved, as the end of an iteration is.
        if not state.accuracies:
            self.metrics.add({CANARY_GAP: gap})
            state = self._validated(replace(state, version=stamp.version, digest=stamp.digest))
            with self.metrics.timed(RECORD):
                forked = {} if self._fork is None else {ROLE: self._fork.record()}
                self.records.begin(state, synced.published.tensors, forked)
            self.metrics.publish(state.iteration)
            self.save(state)
        elif state.finished(self.recipe.rl) and str(state.iteration) not in state.accuracies:
            state = self._validated(state)  # a longer run, whose checkpoint it is, did not
        first = 0 if self._fork is None else self._fork.number
        if state.iteration == first and not state.finished(self.recipe.rl):
            self._probe(state)
        peaks = {role: learner.peak_flops() for role, learner in self.workers.trained.items()}
        self.metrics.begin_step(self.workers.gpus, peaks)
        if self.ahead is not None:
            self.ahead.begin(state, {**behind, state.iteration: synced})
        return state

    def _initial(self) -> LoopState:
        """Return the state before the first iteration, which is another run's in a fork."""
        if self._fork is None:
            return LoopState.initial(self.recipe.rl)
        policy = self.records.lineage.parents.get("policy")
        state = self._fork.begin(self.store, self.recipe, self.workers.trained, policy)
        return replace(state, cursor=self.drawing.stream.aligned(state.cursor))

    @property
    def _offers_kept(self) -> int:
        """Policies that may be waiting for the engines; those before are loaded by then."""
        return self.recipe.rl.rollout.max_staleness + 1

    def _offer(self) -> Offered:
        """Publish the learner's weights for engines that come to them later."""
        offered = offer_weights(self.workers.learner, self.canary, kept=self._offers_kept)
        offered.learnt.result()  # in this thread, in which the learners are called
        return offered

    def _offers_behind(self, state: LoopState) -> dict[int, Offered]:
        """Return the policies of ``state.behind``, by iteration, out of their checkpoints."""
        offers: dict[int, Offered] = {}
        for iteration, (_, digest) in enumerate(state.behind, state.draw.sampler):
            self.checkpoints.load(self.workers.trained, iteration)
            offers[iteration] = offered = self._offer()
            if (held := offered.published.stamp.digest) != digest:
                raise StaleWeightsError(
                    f"checkpoint {iteration} holds weights {held[:12]} and those that iteration"
                    f" {state.iteration} left behind are {digest[:12]}; delete it from the store"
                    " and rerun"
                )
        if offers:
            self.checkpoints.load(self.workers.trained, state.iteration)
        return offers

    def _probe(self, state: LoopState) -> None:
        """Let learners run out of memory now if they ever do; the checkpoint of ``state`` undoes
        what that changes."""
        with activity("the step that tries the memory"):
            self._rest()
            shown = self.train.with_shortest(self.recipe.model.max_tokens)
            probe_memory(self.recipe, self.workers, state, prompts=shown, ptx=self.ptx)
        self.checkpoints.load(self.workers.trained, state.iteration)
        held = self.workers.learner.stamp()
        assert (held.version, held.digest) == (state.version, state.digest), "the probe is undone"

    def _rest(self) -> None:
        """Let the engines give their memory back, which learners need now."""
        if self.recipe.hardware.rollout.sleep:
            self.workers.engines.rest()

    def rollout(self, state: LoopState, groups: DrawnGroups) -> ArtifactRef:
        """Sample one round of trajectories, and greedy baselines where wanted; record them.

        What was sampled ahead is waited for (``Ahead``), and the metrics say so."""
        if self.ahead is None:
            return self.drawing.rollout(state.draw, groups)
        with self.metrics.timed("gen", what=WAIT):
            ahead = self.ahead.wait(state.next_iteration)
        self.metrics.add(ahead.metrics)
        self.metrics.spans.extend(ahead.spans)  # again in each round, and recorded once
        return ahead.rounds[len(groups.rounds)][0]

    def reward(self, state: LoopState, rollouts: ArtifactRef) -> ArtifactRef:
        """Score one round's trajectories, and its baselines, in the reward workers."""
        if self.ahead is None:
            return self.drawing.reward(rollouts)
        rounds = self.ahead.wait(state.next_iteration).rounds
        return next(rewards for drawn, rewards in rounds if drawn == rollouts)

    def collect(
        self, state: LoopState, groups: DrawnGroups, rollouts: ArtifactRef, rewards: ArtifactRef
    ) -> DrawnGroups:
        """Return ``groups`` with a round's groups added: all of them, or those with a signal."""
        return self.drawing.collect(state.draw, groups, rollouts, rewards)

    def advantage(self, state: LoopState, groups: DrawnGroups) -> Advantages:
        """Recompute log-probs under learner and reference, check them, estimate advantages."""
        recipe = self.recipe
        with self.metrics.timed("adv"):
            self._rest()
            every = self.records.drawn(groups)
            frame = of_prompts(every, groups.kept)
            # Rows of other weights would get ratios between the wrong policies.
            stamp = state.draw.stamp if state.behind else self.workers.learner.stamp()
            check_fresh(frame, stamp)
            fused = recipe.rl.update.fused and state.trains_policy(recipe.rl)
            frame = with_scores(frame, recipe.rl, self.workers, fused=fused)
            masks = to_arrays(frame["loss_mask"])
            old = arrays_of(frame, "old_logprobs")
            if old is not None and stamp.version == state.version:  # else they are two policies'
                sampler, bound = to_arrays(frame["sampler_logprobs"]), recipe.sampler_gap_bound
                self.metrics.add(check_sampler_gap(sampler, old, masks, bound=bound))
            if self.ahead is not None:
                updates = state.version - stamp.version
                self.metrics.add({STALENESS: float(updates * recipe.rl.update.steps)})
            frame, metrics = with_advantages(frame, recipe, state.kl_coef)
            self.metrics.add(metrics | groups.metrics())
            self.metrics.add(self.answers.metrics(state.next_iteration, every))
            name = self.records.name(state.next_iteration)
            # Log-probs of another packing round otherwise: other advantages, if by little.
            made = groups.parents, {PACKED_FOR: recipe.hardware.learner.micro_batch_tokens}
            table = frame.select([*polars_schema("advantages")])
            ref = self.records.find("advantages", name, *made) or self.records.put(
                "advantages", name, {"advantages": table}, *made
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
        version, critic, kl_coef = state.version, None, state.kl_coef
        if self.workers.critic is not None and self.workers.side_by_side:
            critic = self.training.start_critic(frame, advantages.ref)
        if state.trains_policy(self.recipe.rl):
            version = self.training.train_policy(frame, version, advantages.ref)
            kl_coef = state.next_kl_coef(
                self.recipe.rl.algorithm.kl, advantages.mean_kl, advantages.num_sequences
            )
        if self.workers.critic is not None:
            finish = critic or self.training.start_critic(frame, advantages.ref)
            finish()
        return replace(
            state,
            version=version,
            behind=state.left_behind(self.recipe.rl.rollout.max_staleness),
            cursor=state.cursor + groups.drawn,
            kl_coef=kl_coef,
        )

    def sync(self, state: LoopState) -> LoopState:
        """Load the new weights into every engine, validate when due, begin the checkpoint."""
        with self.metrics.timed("sync"):
            if self.ahead is None:
                offered, gap = sync_weights(self.workers.learner, self.workers.engines, self.canary)
                self.metrics.add({CANARY_GAP: gap})
            else:
                offered = self._offer()
            stamp = offered.published.stamp
            assert stamp.version == state.version, "what was trained is published"
        before, rl = state.digest, self.recipe.rl
        state = replace(state, iteration=state.next_iteration, digest=stamp.digest)
        with self.metrics.timed(RECORD):
            self.records.extend(before, state, offered.published.tensors)
        if validation_due(state, rl):
            state = self._validated(state, offered)
        elif self.ahead is not None:
            self.ahead.offer(state.iteration, offered)
        if self.ahead is None:
            self.metrics.spans.extend(self.workers.engines.taken_spans())
        self.metrics.add(self.workers.engines.taken_losses())
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
        if state.takes_average(best):
            self.log(f"the average of the weights after iteration {best} is better than they are")
            self.workers.learner.swap_average()
        self.workers.learner.export_hf(directory)
        self.metrics.close()
        return self.records.parent(best, "best")

    def _validated(self, state: LoopState, offered: Offered | None = None) -> LoopState:
        """Return ``state`` with what greedy validation says of its weights, which the engines hold,
        or come to where they are ``offered``. Recorded are the answers, which show how the policy
        changes, and their verdicts, for which a judge may have been paid."""

        def record(scored: pl.DataFrame, answers: pl.DataFrame) -> None:
            tables = {"validation_rewards": scored, "validation_answers": answers}
            self.records.put("validation", self.records.name(state.iteration), tables)

        validate = partial(self.validation.run, record)
        with self.metrics.timed("testing"):
            if self.ahead is None or offered is None:
                figure, metrics = validate()
            else:
                figure, metrics = self.ahead.offer(state.iteration, offered, validate).result()
        self.metrics.add(metrics)
        state = state.validated(figure, self.recipe.rl)
        if self.recipe.rl.update.ema is None or state.iteration == 0:  # there it is the weights
            return state
        return self._validated_average(state)

    def _validated_average(self, state: LoopState) -> LoopState:
        """Return ``state`` with what greedy validation says of the average of its weights. Learner
        and engines hold it meanwhile, and the weights again afterwards; both loads are proven."""
        learner, engines = self.workers.learner, self.workers.engines
        with self.metrics.timed("testing"):
            learner.swap_average()
            sync_weights(learner, engines, self.canary)
            figure, metrics = self.validation.run()
            learner.swap_average()
            again, _ = sync_weights(learner, engines, self.canary)
        assert again.published.stamp.digest == state.digest, "the weights are held again"
        self.metrics.add({f"ema/{name}": value for name, value in metrics.items()})
        averaged = {**(state.averaged or {}), str(state.iteration): figure}
        return replace(state, averaged=averaged)

"""One RL run: its data, workers and records; how it starts, continues where it was, and ends."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.cluster.activity import activity
from rlcore.models.packing import Sequences
from rlcore.rl.answers import RecentAnswers
from rlcore.rl.checkpoint import RLCheckpoints
from rlcore.rl.fork import ROLE, Fork
from rlcore.rl.guards import StaleWeightsError
from rlcore.rl.history import History
from rlcore.rl.metrics import RECORD, SAVE, MetricsLog
from rlcore.rl.probe import probe_memory
from rlcore.rl.prompts import PromptRows
from rlcore.rl.records import Records
from rlcore.rl.state import LoopState, validation_due
from rlcore.rl.stream import PromptStream
from rlcore.rl.sync import CANARY_GAP, CANARY_TOKENS, Canary, sync_weights
from rlcore.rl.validation import Validation, validation_prompts
from rlcore.rl.workers import RLWorkers
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.trajectories.setup import episodes_of
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe


class RLRun:
    """Recipe, data, workers and store of one run; ``key`` names it in the store."""

    # Slots keep an orchestrator that encodes a call's arguments from walking through tables.
    __slots__ = (
        "_fork",
        "_lineage",
        "answers",
        "canary",
        "checkpoints",
        "episodes",
        "history",
        "log",
        "metrics",
        "ptx",
        "recipe",
        "records",
        "stop_ids",
        "store",
        "stream",
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
        prompts: PromptRows,
        ptx: Sequences | None,
        tokenizer: Any,
        stop_ids: tuple[int, ...],
        workers: RLWorkers,
        log: Callable[[str], None],
    ) -> None:
        """``ptx``: what PPO-ptx draws from, where the recipe has it. ``stop_ids``: what ends a turn
        of the policy (``models.stops``)."""
        self.recipe = recipe
        self.store = store
        self.workers = workers
        self.log = log
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
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
        self.ptx = ptx
        self.canary = Canary.of_prompts(self.train.head(CANARY_TOKENS), recipe)
        self._lineage = lineage
        self._fork = None if recipe.rl.fork is None else Fork(recipe.rl.fork, store)
        self.records = Records(store, key, lineage, log)
        self.history = History(store, key, lineage, log)
        self.checkpoints = RLCheckpoints(store, key, lineage, recipe.rl)
        self.metrics = MetricsLog(store, key, lineage)
        self.answers = RecentAnswers(store, key, least=recipe.rl.rollout.prompts)

    def start(self) -> LoopState:
        """Return the state to continue from, with learners and engines holding its weights."""
        restored = self.checkpoints.restore(self.workers.trained, log=self.log)
        state = restored or self._begin()
        synced = sync_weights(self.workers.learner, self.workers.engines, self.canary)
        stamp = synced.stamp
        if state.digest and stamp.digest != state.digest:
            raise StaleWeightsError(
                f"checkpoint {state.iteration} holds weights {stamp.digest[:12]} and its state says"
                f" {state.digest[:12]}; delete it from the store and rerun"
            )
        if not state.accuracies:
            self.metrics.add({CANARY_GAP: synced.canary_gap})
            state = self.validated(replace(state, version=stamp.version, digest=stamp.digest))
            with self.metrics.timed(RECORD):
                self.history.begin(state, synced.tensors, self._forked_from())
            self.metrics.publish(state.iteration)
            self.save(state)
        if state.iteration == self._first and not state.finished(self.recipe.rl):
            self._probe(state)
        self.metrics.begin_step(self.workers.gpus, self.workers.peaks())
        return state

    @property
    def _first(self) -> int:
        """The iteration that this run begins after."""
        return 0 if self._fork is None else self._fork.number

    def _probe(self, state: LoopState) -> None:
        """Let learners run out of memory now if they ever do; the checkpoint of ``state`` undoes
        what that changes."""
        with activity("the step that tries the memory"):
            shown = self.train.with_shortest(self.recipe.model.max_tokens)
            probe_memory(self.recipe, self.workers, state, prompts=shown, ptx=self.ptx)
        self.checkpoints.load(self.workers.trained, state.iteration)
        held = self.workers.learner.stamp()
        assert (held.version, held.digest) == (state.version, state.digest), "the probe is undone"

    def _begin(self) -> LoopState:
        """Return the state before the first iteration, which is another run's in a fork."""
        if self._fork is None:
            return LoopState.initial(self.recipe.rl)
        return self._fork.begin(
            self.store, self.recipe, self.workers.trained, self._lineage.parents.get("policy")
        )

    def _forked_from(self) -> dict[str, ArtifactRef]:
        return {} if self._fork is None else {ROLE: self._fork.record()}

    def finish(self, state: LoopState, directory: Path) -> None:
        """Export the best checkpoint's policy into ``directory``; close the metrics.

        Best by the figure of greedy validation, a tie going to the later iteration.
        """
        (best,) = state.best()
        if best != state.iteration or self.workers.learner.stamp().digest != state.digest:
            self.checkpoints.load(self.workers.trained, best)
        self.workers.learner.export_hf(directory)
        self.metrics.close()

    def best_record(self, state: LoopState) -> dict[str, ArtifactRef]:
        """Return the record of the iteration whose weights ``finish`` exports, as a parent."""
        (best,) = state.best()
        return self.history.parent(best, "best")

    def validated(self, state: LoopState) -> LoopState:
        """Return ``state`` with what greedy validation says of its weights."""
        with self.metrics.timed("testing"):
            figure, metrics = self.validation.run(
                lambda scored, answers: self._record_validation(state.iteration, scored, answers)
            )
        self.metrics.add(metrics)
        return state.validated(figure, self.recipe.rl)

    def _record_validation(
        self, iteration: int, scored: pl.DataFrame, answers: pl.DataFrame
    ) -> None:
        """Record the answers, which show how the policy changes, and their verdicts, for which a
        judge may have been paid."""
        tables = {"validation_rewards": scored, "validation_answers": answers}
        self.records.replace("validation", self.records.name(iteration), tables, {})

    def save(self, state: LoopState) -> None:
        """Start to publish the checkpoint of ``state``, once the one before is written."""
        with self.metrics.timed(SAVE):
            self.checkpoints.publish(self.workers.trained, state)

    def checkpoint_due(self, state: LoopState) -> bool:
        """Validated weights are always kept: they may turn out the best."""
        rl = self.recipe.rl
        on_schedule = state.iteration % rl.checkpoint.every == 0
        return on_schedule or validation_due(state, rl) or state.finished(rl)

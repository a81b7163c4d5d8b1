"""Supervised training, one term per optimizer step, resumable at any checkpoint: SFT, preference
and the reward model."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Protocol

import numpy as np
import polars as pl

from rlcore.algorithms.seeds import stream_seed
from rlcore.learner.checkpoints import Checkpoints
from rlcore.learner.pool import LearnerPool
from rlcore.learner.schedule import optimizer_lr
from rlcore.learner.spec import Term
from rlcore.results.metrics import (
    FLOPS,
    metrics_frame,
    publish_metrics,
    token_rates_of,
    utilisation,
    whole_gpus,
)
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.preference import PreferenceSection
from schemas.recipe import SFTSection
from schemas.reward_model import RewardModelSection

LEARNER = "learner"  # the learner's role in checkpoints


@dataclass(frozen=True, slots=True)
class Progress:
    """One optimizer step done: ``step`` of ``total``, metrics; rates cover this process only."""

    step: int
    total: int
    metrics: dict[str, float]
    tokens_per_s: float
    eta_s: float | None  # None after the first step of this process, which also warms it up


class SupervisedBatches(Protocol):
    """What the optimizer steps of the stage ``stage`` minimise."""

    stage: str
    total_steps: int

    def term(self, step: int) -> Term:
        """Return what step ``step`` (from 0) minimises: a function of the step and perhaps of the
        weights before it, so that a resumed run takes the same steps."""
        ...


class SupervisedTraining:
    """The optimizer steps of ``learner`` on ``batches``, by the settings of ``section``.

    ``key`` names its checkpoints and metrics in the store.
    """

    def __init__(
        self,
        batches: SupervisedBatches,
        section: SFTSection | PreferenceSection | RewardModelSection,
        *,
        learner: LearnerPool,
        store: ArtifactStore,
        key: str,
        lineage: Lineage,
    ) -> None:
        self._batches, self._section, self._learner = batches, section, learner
        self._stage, self.total_steps = batches.stage, batches.total_steps
        self._store, self._key, self._lineage = store, key, lineage
        self._checkpoints = Checkpoints(store, key, lineage)
        self._metrics: list[pl.DataFrame] = []

    def run(self, on_step: Callable[[Progress], None], log: Callable[[str], None]) -> None:
        """Train to the last step, from the newest complete checkpoint."""
        first = self._restore(log)
        gpus, peak = whole_gpus(self._learner.gpus), self._learner.peak_flops()
        began, tokens, flops, warm = perf_counter(), 0, 0.0, None
        for step in range(first + 1, self.total_steps + 1):
            term = self._batches.term(step - 1)
            lr = optimizer_lr(self._section.optimizer, step - 1, self.total_steps)
            metrics = self._learner.step([term], lr)
            tokens, role = tokens + term.sequences.num_tokens, term.objective.name
            now = perf_counter()
            rate = tokens / (now - began)
            warm = now if warm is None else warm
            done = step - first - 1  # since then
            left = (self.total_steps - step) * (now - warm) / done if done else None
            metrics |= token_rates_of(tokens, now - began, gpus)
            flops += metrics[f"{role}/{FLOPS}"]
            metrics |= utilisation(role, flops, now - began, peak)
            self._metrics.append(metrics_frame(self._stage, step, metrics))
            on_step(Progress(step, self.total_steps, metrics, rate, left))
            if step % self._section.checkpoint_every == 0 and step < self.total_steps:
                self._checkpoint(step)

    def publish(self, last: dict[str, float]) -> None:
        """Publish the metrics of all steps, and ``last`` with the last step."""
        frames = [*self._metrics, metrics_frame(self._stage, self.total_steps, last)]
        publish_metrics(self._store, self._key, "end", pl.concat(frames), self._lineage)

    def discard_checkpoints(self) -> None:
        """Delete the run's checkpoints; call it once the model is published."""
        self._checkpoints.keep(())

    def _checkpoint(self, step: int) -> None:
        """Save after ``step`` steps, with the metrics so far; replaces the previous checkpoint."""
        tables = {"metrics": pl.concat(self._metrics)}
        self._checkpoints.begin(step, {LEARNER: self._learner}, {"step": step}, tables)()
        self._checkpoints.keep({step})

    def _restore(self, log: Callable[[str], None]) -> int:
        """Load the newest checkpoint and return its step, 0 when there is none."""
        ref = self._checkpoints.newest(log)
        if ref is None:
            return 0
        self._checkpoints.load(ref, {LEARNER: self._learner})
        self._metrics = [self._store.table(ref, "metrics")]
        step = int(self._store.manifest(ref).metadata["step"])
        log(f"{self._stage} continues after step {step} of {self.total_steps}")
        return step


def epoch_steps(num_rows: int, batch_size: int) -> int:
    """Return the optimizer steps that train on every row once; the last one may be smaller."""
    return -(-num_rows // batch_size)


def batch_rows(num_rows: int, batch_size: int, *, step: int, seed: int, stage: str) -> np.ndarray:
    """Return the rows of optimizer step ``step``: an epoch is a seeded permutation of all."""
    epoch, index = divmod(step, epoch_steps(num_rows, batch_size))
    order = _epoch_order(num_rows, stream_seed(seed, stage, epoch))
    return order[index * batch_size : (index + 1) * batch_size]


@lru_cache(maxsize=2)  # of ten million rows it takes as long as a step
def _epoch_order(num_rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(num_rows)

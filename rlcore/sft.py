"""SFT warm start: token-mean NLL on assistant tokens, resumable at any checkpoint (SPEC D5)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from time import perf_counter

import numpy as np
import polars as pl

from rlcore.algorithms.objective import SftObjective
from rlcore.learner.group import LearnerGroup
from rlcore.learner.schedule import optimizer_lr
from rlcore.learner.spec import Term
from rlcore.metrics import metrics_frame, publish_metrics
from rlcore.models.packing import Sequences
from rlcore.ragged import to_arrays
from rlcore.seeds import stream_seed
from rlcore.store import ArtifactStore, Lineage
from schemas.errors import UserError
from schemas.recipe import SFTSection

KIND = "checkpoint"
STAGE = "sft"


@dataclass(frozen=True, slots=True)
class Progress:
    """One optimizer step done: ``step`` of ``total`` and its metrics; rates are of this process."""

    step: int
    total: int
    metrics: dict[str, float]
    tokens_per_s: float
    eta_s: float


class SFT:
    """One SFT run over a learner; ``key`` names its checkpoints and metrics in the store."""

    def __init__(
        self,
        section: SFTSection,
        *,
        learner: LearnerGroup,
        demonstrations: pl.DataFrame,
        seed: int,
        store: ArtifactStore,
        key: str,
        lineage: Lineage,
    ) -> None:
        self._section, self._learner, self._seed = section, learner, seed
        self._store, self._key, self._lineage = store, key, lineage
        train = demonstrations.filter(pl.col("split") == "train")
        if train.height < section.batch_size:
            raise UserError(
                f"sft.batch_size = {section.batch_size} exceeds the {train.height} demonstrations;"
                " lower it, add demonstrations, or set sft.enabled to false"
            )
        self._train = demonstration_sequences(train)
        self._validation = demonstration_sequences(
            demonstrations.filter(pl.col("split") == "validation")
        )
        steps = section.epochs * (train.height // section.batch_size)
        self.total_steps = min(steps, section.max_steps or steps)
        self._metrics: list[pl.DataFrame] = []

    def run(self, on_step: Callable[[Progress], None], log: Callable[[str], None]) -> None:
        """Train to the last step, from the newest complete checkpoint; publish the metrics."""
        done = self._restore(log)
        first, began, tokens = done, perf_counter(), 0
        for step in range(done, self.total_steps):
            batch = self._batch(step)
            lr = optimizer_lr(self._section.optimizer, step, self.total_steps)
            metrics = self._learner.step([Term(batch, SftObjective())], lr)
            tokens += batch.num_tokens
            seconds = perf_counter() - began
            rate = tokens / seconds
            metrics["perf/throughput"] = rate
            self._metrics.append(metrics_frame(STAGE, step + 1, metrics))
            left = (self.total_steps - step - 1) * seconds / (step + 1 - first)
            on_step(Progress(step + 1, self.total_steps, metrics, rate, left))
            if (step + 1) % self._section.checkpoint_every == 0 and step + 1 < self.total_steps:
                self._checkpoint(step + 1)
        if len(self._validation):
            loss = self._validation_loss()
            self._metrics.append(
                metrics_frame(STAGE, self.total_steps, {"sft/validation_loss": loss})
            )
        publish_metrics(self._store, self._key, "end", pl.concat(self._metrics), self._lineage)

    def discard_checkpoints(self) -> None:
        """Drop the run's checkpoints; call it once the policy they led to is published."""
        for key in self._store.keys(KIND, f"{self._key}/"):
            self._store.discard(KIND, key)

    def _batch(self, step: int) -> Sequences:
        return self._train.take(
            batch_rows(len(self._train), self._section.batch_size, step=step, seed=self._seed)
        )

    def _validation_loss(self) -> float:
        scores = self._learner.logprobs(self._validation).logprobs
        mask = np.concatenate(self._validation.loss_mask)
        return float(-np.concatenate(scores)[mask].mean())

    def _checkpoint(self, step: int) -> None:
        """Save after ``step`` steps, the metrics so far with it; the one before is superseded."""
        with self._store.scratch() as scratch:
            self._learner.save(str(scratch))
            self._store.put(
                KIND,
                f"{self._key}/{step:06d}",
                tables={"metrics": pl.concat(self._metrics)},
                directory=scratch,
                lineage=replace(self._lineage, metadata={"step": step}),
            )
        for key in self._store.keys(KIND, f"{self._key}/"):
            if int(key.rsplit("/", 1)[1]) < step:
                self._store.discard(KIND, key)

    def _restore(self, log: Callable[[str], None]) -> int:
        """Load the newest checkpoint and return its step, 0 when there is none."""
        for key in sorted(self._store.keys(KIND, f"{self._key}/"), reverse=True):
            ref = self._store.find_or_discard(KIND, key, log)
            if ref is None:
                continue
            self._learner.load(str(self._store.directory(ref)))
            self._metrics = [self._store.table(ref, "metrics")]
            step = int(self._store.manifest(ref).metadata["step"])
            log(f"SFT continues after step {step} of {self.total_steps}")
            return step
        return 0


def demonstration_sequences(demonstrations: pl.DataFrame) -> Sequences:
    """Return the rows of a Demonstrations table as sequences with their loss masks."""
    masks = [mask.astype(bool) for mask in to_arrays(demonstrations["loss_mask"])]
    return Sequences(
        token_ids=to_arrays(demonstrations["token_ids"]),
        prompt_lengths=np.array([int(mask.argmax()) for mask in masks], dtype=np.int64),
        loss_mask=masks,
    )


def batch_rows(num_rows: int, batch_size: int, *, step: int, seed: int) -> np.ndarray:
    """Return the row numbers of optimizer step ``step``: seeded permutations, whole batches only.

    A function of the step alone, so a resumed run sees the batches that it would have seen.
    """
    per_epoch = num_rows // batch_size
    epoch, index = divmod(step, per_epoch)
    order = _epoch_order(num_rows, stream_seed(seed, "sft", epoch))
    return order[index * batch_size : (index + 1) * batch_size]


@lru_cache(maxsize=2)
def _epoch_order(num_rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(num_rows)

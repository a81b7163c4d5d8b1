"""SFT warm start: token-mean NLL on assistant tokens, resumable at any checkpoint."""

from collections.abc import Callable

import numpy as np
import polars as pl

from rlcore.algorithms.objective import SftObjective
from rlcore.data.split import NO_DEMONSTRATIONS
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import Term
from rlcore.models.packing import Sequences
from rlcore.ragged import to_arrays
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.supervised.loop import Progress, Training, batch_rows, epoch_steps
from schemas.errors import UserError
from schemas.recipe import SFTSection

STAGE = "sft"


class SFT:
    """One SFT run over a learner; ``key`` names its checkpoints and metrics in the store.

    Raises ``UserError`` without a training demonstration.
    """

    def __init__(
        self,
        section: SFTSection,
        *,
        learner: LearnerPool,
        demonstrations: pl.DataFrame,
        seed: int,
        store: ArtifactStore,
        key: str,
        lineage: Lineage,
    ) -> None:
        self._section, self._learner, self._seed = section, learner, seed
        train = demonstrations.filter(pl.col("split") == "train")
        if not train.height:
            raise UserError(NO_DEMONSTRATIONS)
        self._train = demonstration_sequences(train)
        self._validation = demonstration_sequences(
            demonstrations.filter(pl.col("split") == "validation")
        )
        steps = section.epochs * epoch_steps(train.height, section.batch_size)
        self.total_steps = min(steps, section.max_steps or steps)
        self._training = Training(
            STAGE,
            learner=learner,
            optimizer=section.optimizer,
            total_steps=self.total_steps,
            checkpoint_every=section.checkpoint_every,
            store=store,
            key=key,
            lineage=lineage,
        )

    def run(self, on_step: Callable[[Progress], None], log: Callable[[str], None]) -> None:
        """Train to the last step, from the newest complete checkpoint; publish the metrics."""
        self._training.run(self._term, on_step, log)
        held_out = len(self._validation) > 0
        self._training.publish({"sft/validation_loss": self._validation_loss()} if held_out else {})

    def discard_checkpoints(self) -> None:
        """Delete the run's checkpoints; call it once the policy is published."""
        self._training.discard_checkpoints()

    def _term(self, step: int) -> Term:
        size, count = self._section.batch_size, len(self._train)
        rows = batch_rows(count, size, step=step, seed=self._seed, stage=STAGE)
        return Term(self._train.take(rows), SftObjective())

    def _validation_loss(self) -> float:
        scores = self._learner.logprobs(self._validation).logprobs
        mask = np.concatenate(self._validation.loss_mask)
        return float(-np.concatenate(scores)[mask].mean())


def demonstration_sequences(demonstrations: pl.DataFrame) -> Sequences:
    """Return the rows of a Demonstrations table as sequences with their loss masks."""
    return Sequences(
        token_ids=to_arrays(demonstrations["token_ids"]),
        loss_mask=to_arrays(demonstrations["loss_mask"]),
    )

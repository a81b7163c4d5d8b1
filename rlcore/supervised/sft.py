"""SFT warm start: token-mean NLL on assistant tokens, resumable at any checkpoint."""

import numpy as np
import polars as pl

from rlcore.algorithms.objective import SftObjective
from rlcore.data.split import NO_DEMONSTRATIONS
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import Term
from rlcore.models.packing import Sequences
from rlcore.models.ragged import to_arrays
from rlcore.supervised.loop import batch_rows, epoch_steps
from schemas.errors import UserError
from schemas.recipe import SFTSection

STAGE = "sft"


class DemonstrationBatches:
    """Optimizer steps over the training demonstrations, and the loss on those held out."""

    stage = STAGE

    def __init__(self, section: SFTSection, demonstrations: pl.DataFrame, seed: int) -> None:
        """Raises ``UserError`` without a training demonstration."""
        self._batch_size, self._seed = section.batch_size, seed
        train = demonstrations.filter(pl.col("split") == "train")
        if not train.height:
            raise UserError(NO_DEMONSTRATIONS)
        self._train = demonstration_sequences(train)
        self._validation = demonstration_sequences(
            demonstrations.filter(pl.col("split") == "validation")
        )
        steps = section.epochs * epoch_steps(train.height, section.batch_size)
        self.total_steps = min(steps, section.max_steps or steps)

    def term(self, step: int) -> Term:
        """Return what optimizer step ``step`` (from 0) minimises: a function of the step alone."""
        rows = batch_rows(
            len(self._train), self._batch_size, step=step, seed=self._seed, stage=STAGE
        )
        return Term(self._train.take(rows), SftObjective())

    def validation(self, learner: LearnerPool) -> dict[str, float]:
        """Return the mean NLL of the held-out assistant tokens, nats, as a metric; none without a
        validation split."""
        if not len(self._validation):
            return {}
        scores = learner.logprobs(self._validation).result().logprobs
        mask = np.concatenate(self._validation.loss_mask)
        return {"sft/validation_loss": float(-np.concatenate(scores)[mask].mean())}


def demonstration_sequences(demonstrations: pl.DataFrame) -> Sequences:
    """Return the rows of a Demonstrations table as sequences with their loss masks."""
    return Sequences(
        token_ids=to_arrays(demonstrations["token_ids"]),
        loss_mask=to_arrays(demonstrations["loss_mask"]),
    )

"""Training on ranked responses: every pair of a prompt in one batch element."""

from dataclasses import replace

import numpy as np
import polars as pl

from rlcore.algorithms.objective import PreferenceObjective
from rlcore.algorithms.preference_loss import pair_weights
from rlcore.learner.spec import Term
from rlcore.models.packing import Sequences
from rlcore.reward_model.preferences import comparable, preference_sequences
from rlcore.supervised.loop import batch_rows, epoch_steps
from schemas.errors import UserError
from schemas.names import REWARD_MODEL
from schemas.reward_model import RewardModelSection


class PreferenceBatches:
    """Optimizer steps over the training prompts that have responses of unequal rank."""

    stage = REWARD_MODEL

    def __init__(self, section: RewardModelSection, preferences: pl.DataFrame, seed: int) -> None:
        """Raises ``UserError`` when there are none."""
        train = preferences.filter(pl.col("split") == "train")
        train = train.filter(comparable(train))
        self._sequences = preference_sequences(train)
        self._ranks = train["rank"].to_numpy()
        prompts = train["uid"].rle_id().to_numpy()
        self._members = np.split(np.arange(len(prompts)), np.flatnonzero(np.diff(prompts)) + 1)
        self._batch_prompts, self._seed = section.batch_prompts, seed
        if not train.height:
            raise UserError(
                f"reward_model.batch_prompts = {section.batch_prompts} exceeds the 0 training"
                " prompts whose responses differ in rank; take more preferences"
            )
        self.total_steps = section.epochs * epoch_steps(len(self._members), section.batch_prompts)

    def term(self, step: int) -> Term:
        """Return what optimizer step ``step`` (from 0) minimises: a function of the step alone."""
        chosen = batch_rows(
            len(self._members), self._batch_prompts, step=step, seed=self._seed, stage=REWARD_MODEL
        )
        members = [self._members[prompt] for prompt in chosen.tolist()]
        rows = np.concatenate(members)
        groups = np.repeat(np.arange(len(members)), [len(part) for part in members])
        return Term(
            ranked_sequences(self._sequences.take(rows), self._ranks[rows], groups),
            PreferenceObjective(),
        )


def ranked_sequences(sequences: Sequences, ranks: np.ndarray, groups: np.ndarray) -> Sequences:
    """Return one optimizer step's ``sequences`` with the fields that ``PreferenceObjective`` reads.

    ``ranks``, ``groups`` [sequences] int, lower ranks better. The pair weights make the loss the
    mean over prompts of the mean over their pairs of unequal rank.
    """
    per_sequence = {"ranks": ranks, "pair_weights": pair_weights(ranks, groups)}
    lengths = sequences.lengths.tolist()
    return replace(
        sequences,
        per_token={
            name: [
                np.full(length, value, dtype=np.float32)
                for length, value in zip(lengths, values.tolist(), strict=True)
            ]
            for name, values in per_sequence.items()
        },
        groups=groups.astype(np.int64),
    )

"""The reward model: training on ranked responses, its zero, and how well it orders held-out
ones.

The pairwise loss does not determine the absolute level of scores, but that level matters relative
to the KL penalty and to truncated responses (InstructGPT arXiv 2203.02155 App. C.2).

A pair is two responses of unequal rank to one prompt; it is right when the better one scores
higher (equal scores are wrong). Its difficulty is the pair of levels, e.g. "correct_over_wrong".
"""

import os
from dataclasses import astuple, dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from rlcore.algorithms.losses import pair_weights
from rlcore.algorithms.objective import PreferenceObjective
from rlcore.algorithms.seeds import stream_seed
from rlcore.algorithms.statistics import bootstrap_share
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import Term
from rlcore.models.packing import Sequences
from rlcore.models.weight_files import read_checkpoint
from rlcore.supervised.loop import batch_rows, epoch_steps
from rlcore.supervised.preferences import (
    by_prompt,
    comparable,
    joined_rows,
    on_every_token,
    preference_sequences,
)
from schemas.errors import UserError
from schemas.names import REWARD_MODEL
from schemas.outcomes import LEVELS
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
        self._members = by_prompt(train)
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
        rows, groups = joined_rows([self._members[prompt] for prompt in chosen.tolist()])
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
    per_token = {name: on_every_token(sequences, each) for name, each in per_sequence.items()}
    return replace(sequences, per_token=per_token, groups=groups.astype(np.int64))


WEIGHTS = "model.safetensors"
BIAS = "score.bias"


def zero_sequences(
    demonstrations: pl.DataFrame, preferences: pl.DataFrame, count: int, seed: int
) -> Sequences:
    """Return at most ``count`` training demonstrations, drawn by (seed, uid), to score 0.

    Where there are none (no SFT), the best-ranked training responses of ``preferences`` are used
    instead.
    """
    rows = demonstrations.filter(pl.col("split") == "train").select("uid", "token_ids")
    if rows.is_empty():
        train = preferences.filter(pl.col("split") == "train")
        best = pl.col("rank") == pl.col("rank").min().over("uid")
        rows = train.filter(best).select("uid", "token_ids")
    order = pl.Series("order", [stream_seed(seed, "zero", uid) for uid in rows["uid"]])
    ordered = rows.with_columns(order).sort("order", maintain_order=True)
    return preference_sequences(ordered.head(count))


def shift_bias(model_dir: Path, shift: float) -> None:
    """Add ``shift`` to the score's bias of a reward model written by ``export_hf``, atomically.

    In bfloat16 the bias keeps three digits. Raises ``UserError`` when the model has no such bias.
    """
    from safetensors.torch import save_file

    state = dict(read_checkpoint(model_dir))
    if BIAS not in state:
        raise UserError(f"{model_dir} holds no {BIAS}; give the directory of a reward model")
    state[BIAS] = (state[BIAS].double() + shift).to(state[BIAS].dtype)
    partial = model_dir / f".{WEIGHTS}"
    save_file({n: t.contiguous() for n, t in state.items()}, partial, metadata={"format": "pt"})
    os.replace(partial, model_dir / WEIGHTS)


ALL = "all"
DIFFICULTIES = tuple(f"{better}_over_{worse}" for better, worse in combinations(LEVELS, 2))
BINS = 10


@dataclass(frozen=True)
class RewardModelEvaluation:
    """``tables``: preference_scores, pair_accuracy, calibration, by name. ``calibration_error``:
    the ECE, a share."""

    tables: dict[str, pl.DataFrame]
    calibration_error: float

    @property
    def metrics(self) -> dict[str, float]:
        """The figures by metric name."""
        levels = self.tables["pair_accuracy"].select("level", "accuracy").iter_rows()
        named = {f"reward_model/validation_accuracy/{level}": value for level, value in levels}
        return named | {"reward_model/calibration_error": self.calibration_error}

    def lines(self) -> list[str]:
        """Return a sentence per difficulty, and one on calibration."""
        lines = [
            f"reward model: {row['level'].replace('_', ' ')}: {row['accuracy']:.3f}"
            f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}] of {row['num_pairs']} held-out pairs of"
            f" {row['num_prompts']} prompts"
            for row in self.tables["pair_accuracy"].iter_rows(named=True)
        ]
        return [*lines, f"reward model: calibration error {self.calibration_error:.3f}"]


def evaluate_scores(
    preferences: pl.DataFrame, scores: np.ndarray, seed: int
) -> RewardModelEvaluation:
    """Evaluate ``scores`` [rows] of held-out ``preferences``, some of unequal rank."""
    pairs = pairs_of(preferences, scores)
    bins, error = calibration(pairs)
    tables = {
        "preference_scores": preferences.select("uid", "sample", pl.Series("score", scores)),
        "pair_accuracy": pair_accuracy(pairs, seed),
        "calibration": bins,
    }
    return RewardModelEvaluation(tables, error)


def last_token_scores(learner: LearnerPool, sequences: Sequences) -> np.ndarray:
    """Return [sequences] float64: the output of a value head at the last token of each."""
    values = learner.values(sequences, targets="last").result()
    return np.array([value[-1] for value in values], dtype=np.float64)


def pairs_of(preferences: pl.DataFrame, scores: np.ndarray) -> pl.DataFrame:
    """Return one row per pair: uid, level (null where a side has none), margin.

    ``scores`` [rows of ``preferences``]; ``margin`` = score of the better - score of the worse.
    """
    rows = preferences.select("uid", "rank", "level").with_columns(score=pl.Series(scores))
    pairs = rows.join(rows, on="uid", suffix="_worse", maintain_order="left_right")
    return pairs.filter(pl.col("rank") < pl.col("rank_worse")).select(
        "uid",
        pl.concat_str("level", "level_worse", separator="_over_").alias("level"),
        (pl.col("score") - pl.col("score_worse")).alias("margin"),
    )


def pair_accuracy(pairs: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Return the PairAccuracy table of ``pairs``: a row per difficulty that occurs, then "all"."""
    rows = []
    for level in (*DIFFICULTIES, ALL):
        mine = pairs if level == ALL else pairs.filter(pl.col("level") == level)
        if mine.is_empty():
            continue
        prompts = mine.group_by("uid", maintain_order=True).agg(
            right=(pl.col("margin") > 0).sum(), count=pl.len()
        )
        estimate = bootstrap_share(
            prompts["right"].to_numpy(),
            prompts["count"].to_numpy(),
            stream_seed(seed, "bootstrap", "pair_accuracy", level),
        )
        rows.append((level, prompts.height, mine.height, *astuple(estimate)))
    schema = {"level": pl.String, "num_prompts": pl.Int64, "num_pairs": pl.Int64}
    figures = dict.fromkeys(("accuracy", "ci_low", "ci_high"), pl.Float64)
    return pl.DataFrame(rows, schema=schema | figures, orient="row")


def calibration(pairs: pl.DataFrame) -> tuple[pl.DataFrame, float]:
    """Return the Calibration table and the expected calibration error (ECE).

    For a pair the model claims sigmoid(|margin|) that the response it scores higher is the better
    (Bradley-Terry, InstructGPT eq. 1): ``BINS`` equal bins over [0.5, 1]. The ECE is the mean of
    |claimed - observed| over bins, weighted by their pairs (arXiv 1706.04599 eq. 3).
    """
    margins = pairs["margin"].to_numpy()
    claimed = 1.0 / (1.0 + np.exp(-np.abs(margins)))
    edges = np.linspace(0.5, 1.0, BINS + 1)
    bins = np.clip(np.searchsorted(edges, claimed, side="right") - 1, 0, BINS - 1)
    frame = pl.DataFrame({"bin": bins, "claimed": claimed, "right": margins > 0})
    table = (
        frame.group_by("bin")
        .agg(
            num_pairs=pl.len().cast(pl.Int64),
            claimed=pl.col("claimed").mean(),
            observed=pl.col("right").mean(),
        )
        .sort("bin")
    )
    gap = (table["claimed"] - table["observed"]).abs()
    error = float((gap * table["num_pairs"]).sum() / len(margins))
    low, high = edges[table["bin"].to_numpy()], edges[table["bin"].to_numpy() + 1]
    table = table.select(
        pl.Series("low", low), pl.Series("high", high), "num_pairs", "claimed", "observed"
    )
    return table, error

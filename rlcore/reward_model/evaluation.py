"""How well a reward model orders held-out responses, per difficulty, and how well it is calibrated.

A pair is two responses of unequal rank to one prompt; it is right when the better one scores
higher (equal scores are wrong). Its difficulty is the pair of levels, e.g. "correct_over_wrong".
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl

from rlcore.evaluation.statistics import Estimate, bootstrap_share
from rlcore.learner.pool import LearnerPool
from rlcore.models.packing import Sequences
from rlcore.seeds import stream_seed
from schemas.outcomes import LEVELS

ALL = "all"
DIFFICULTIES = tuple(f"{better}_over_{worse}" for better, worse in combinations(LEVELS, 2))
BINS = 10


@dataclass(frozen=True)
class Evaluation:
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


def evaluate_scores(preferences: pl.DataFrame, scores: np.ndarray, seed: int) -> Evaluation:
    """Evaluate ``scores`` [rows] of held-out ``preferences`` (Preferences rows, some of unequal
    rank)."""
    pairs = pairs_of(preferences, scores)
    bins, error = calibration(pairs)
    tables = {
        "preference_scores": preferences.select("uid", "sample", pl.Series("score", scores)),
        "pair_accuracy": pair_accuracy(pairs, seed),
        "calibration": bins,
    }
    return Evaluation(tables, error)


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
    """Return the PairAccuracy table of ``pairs``: one row per difficulty that occurs, then
    "all"."""
    rows = []
    for level in (*DIFFICULTIES, ALL):
        mine = pairs if level == ALL else pairs.filter(pl.col("level") == level)
        if mine.is_empty():
            continue
        by_prompt = mine.group_by("uid", maintain_order=True).agg(
            right=(pl.col("margin") > 0).sum(), count=pl.len()
        )
        estimate = bootstrap_share(
            by_prompt["right"].to_numpy(),
            by_prompt["count"].to_numpy(),
            stream_seed(seed, "bootstrap", "pair_accuracy", level),
        )
        rows.append((level, by_prompt.height, mine.height, *_figures(estimate)))
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


def _figures(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high

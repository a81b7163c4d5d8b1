"""Per-level figures on scores made by hand."""

import numpy as np
import polars as pl
import pytest

from rlcore.supervised.preferences import preferences_table
from rlcore.supervised.reward_model import calibration, evaluate_scores, pair_accuracy, pairs_of
from schemas.tables import TABLES
from tests.rlcore.supervised.responses import ranked

ROWS = [
    *ranked("a", ["correct", "wrong", "wrong", "malformed"], split="validation"),
    *ranked("b", ["malformed", "correct"], split="validation"),
    *ranked("c", ["wrong", "wrong"], split="validation"),
]
TABLE = preferences_table(ROWS, [[1, 2]] * len(ROWS), [1] * len(ROWS))
# a: correct above one wrong only, above malformed; one wrong above malformed, one level with it
SCORES = np.array([1.0, 2.0, 0.0, 0.0, 3.0, -1.0, 5.0, 9.0])


def accuracies() -> dict[str, tuple]:
    table = pair_accuracy(pairs_of(TABLE, SCORES), seed=0)
    return {row[0]: row[1:] for row in table.iter_rows()}


def test_each_difficulty_counts_its_own_pairs() -> None:
    """Equal scores are no ranking, ties of rank are no pair, and prompts are not compared."""
    found = accuracies()
    assert list(found) == [
        "correct_over_wrong",
        "correct_over_malformed",
        "wrong_over_malformed",
        "all",
    ]
    assert found["correct_over_wrong"][:3] == (1, 2, 0.5)
    assert found["correct_over_malformed"][:3] == (2, 2, 0.5)
    assert found["wrong_over_malformed"][:3] == (1, 2, 0.5)
    assert found["all"][:3] == (2, 6, 0.5)


def test_intervals_resample_prompts_not_pairs() -> None:
    """36 pairs of one prompt are not 36 observations: with two prompts nothing is certain."""
    low, high = accuracies()["all"][3:]
    assert low == 0.0
    assert high == pytest.approx(3 / 5)


def test_calibration_by_hand() -> None:
    """Margins of 0 claim 0.5 and are wrong; +-2 claim .8808, one right of two."""
    pairs = pl.DataFrame({"uid": ["a"] * 4, "level": [None] * 4, "margin": [0.0, 2.0, -2.0, 40.0]})
    table, error = calibration(pairs)
    sure = 1 / (1 + np.exp(-2.0))
    assert table["num_pairs"].to_list() == [1, 2, 1]
    assert table["low"].to_list() == pytest.approx([0.5, 0.85, 0.95])
    assert table["claimed"].to_list() == pytest.approx([0.5, sure, 1.0])
    assert table["observed"].to_list() == [0.0, 0.5, 1.0]
    assert error == pytest.approx((0.5 * 1 + (sure - 0.5) * 2) / 4)


def test_what_is_stored_keeps_its_contract() -> None:
    evaluation = evaluate_scores(TABLE, SCORES, seed=0)
    for name, table in evaluation.tables.items():
        TABLES[name].validate(table)
    assert evaluation.metrics["reward_model/validation_accuracy/all"] == 0.5
    assert "correct over wrong: 0.500" in evaluation.lines()[0]


def test_unjudged_responses_count_in_all_only() -> None:
    """A file of chosen and rejected texts has no levels; it still has an accuracy."""
    table = TABLE.with_columns(level=pl.lit(None, pl.String))
    found = pair_accuracy(pairs_of(table, SCORES), seed=0)
    assert found["level"].to_list() == ["all"]

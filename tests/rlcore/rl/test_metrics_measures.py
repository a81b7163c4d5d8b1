"""The rank correlation of score and verdict: what it counts, and when it says nothing."""

import numpy as np
import polars as pl
import pytest

from rlcore.rl.metrics import (
    LEAST_VERDICTS,
    VERIFIER_CORRELATION,
    length_metrics,
    reward_metrics,
    verdict_correlation,
)


def by_pairs(scores: np.ndarray, correct: np.ndarray) -> float:
    """Count the pairs one by one."""
    right, wrong = scores[correct][:, None], scores[~correct][None, :]
    return float(np.mean((right > wrong).astype(float) - (right < wrong)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("values", [2, 5, 1000])
def test_it_is_the_balance_of_pairs(seed: int, values: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(values, size=64).astype(float)
    correct = rng.random(64) < 0.4
    assert verdict_correlation(scores, correct) == pytest.approx(by_pairs(scores, correct))


def test_it_does_not_depend_on_how_many_are_right() -> None:
    """Spearman's correlation would fall from .87 to .39 while the policy learns."""
    for right in (LEAST_VERDICTS, 100, 200 - LEAST_VERDICTS):
        correct = np.arange(200) < right
        assert verdict_correlation(np.where(correct, 1.0, 0.0), correct) == 1.0
        assert verdict_correlation(np.where(correct, -1.0, 0.0), correct) == -1.0


@pytest.mark.parametrize(
    ("scores", "correct"),
    [
        (np.zeros(40), np.arange(40) < 20),
        (np.arange(40.0), np.ones(40, dtype=bool)),
        (np.arange(40.0), np.zeros(40, dtype=bool)),
        (np.arange(40.0), np.arange(40) < LEAST_VERDICTS - 1),
        (np.zeros(0), np.zeros(0, dtype=bool)),
    ],
)
def test_it_says_nothing_where_it_would_be_noise(scores: np.ndarray, correct: np.ndarray) -> None:
    assert verdict_correlation(scores, correct) is None


def test_rows_without_a_score_or_a_verdict_are_left_out() -> None:
    count = 2 * LEAST_VERDICTS
    correct = [i < LEAST_VERDICTS for i in range(count)]
    rewards = pl.DataFrame(
        {
            "outcome": ["ok"] * count + ["timeout", "ok"],
            "score": [float(c) for c in correct] + [None, 0.5],
            "correct": pl.Series([*correct, True, None], dtype=pl.Boolean),
            "parts": ["{}"] * (count + 2),
            "failures": ["{}"] * (count + 2),
        }
    )
    assert reward_metrics(rewards)[VERIFIER_CORRELATION] == 1.0
    unjudged = rewards.with_columns(correct=pl.lit(None, dtype=pl.Boolean))
    assert VERIFIER_CORRELATION not in reward_metrics(unjudged)


def test_an_answer_of_a_stop_token_alone_is_empty() -> None:
    """One that was cut off or aborted may have had more to say."""
    responses, reasons = ["", " \n", "7", "", ""], ["stop", "stop", "stop", "length", "abort"]
    rollouts = pl.DataFrame(
        {
            "response": responses,
            "finish_reason": reasons,
            "loss_mask": [[False, True]] * 5,
            "prompt_tokens": [1] * 5,
            "turn_ends": [[2]] * 5,
        }
    )
    assert length_metrics(rollouts)["response/empty_ratio"] == pytest.approx(2 / 5)

"""The figures that measure a run are right, edge cases included."""

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest

from rlcore.algorithms.statistics import (
    avg_at_k,
    bootstrap_mean,
    is_majority_right,
    pass_at_k,
    wilson,
)
from schemas.errors import UserError


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_equals_its_definition_by_enumeration(n: int) -> None:
    for c in range(n + 1):
        drawn = [i < c for i in range(n)]
        for k in range(1, n + 1):
            subsets = list(combinations(drawn, k))
            expected = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12), (n, c, k)


def test_pass_at_k_stays_exact_where_binomials_overflow_floats() -> None:
    exact = 1 - Fraction(comb(9_990, 2_000), comb(10_000, 2_000))
    assert pass_at_k(10_000, 10, 2_000) == pytest.approx(float(exact), rel=1e-12)


def test_pass_at_k_edges() -> None:
    assert pass_at_k(8, 0, 8) == 0.0
    assert pass_at_k(8, 1, 8) == 1.0
    assert pass_at_k(8, 3, 1) == pytest.approx(3 / 8)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_what_cannot_be_estimated(n: int, c: int, k: int) -> None:
    with pytest.raises(UserError, match=r"pass@|impossible"):
        pass_at_k(n, c, k)


def test_avg_at_k() -> None:
    assert avg_at_k([True, False, False, True]) == 0.5
    with pytest.raises(UserError, match="at least one scored sample"):
        avg_at_k([])


@pytest.mark.parametrize(
    ("answers", "right", "wins"),
    [
        (["7", "3", "3"], "3", True),
        (["7", "3", "3"], "7", False),
        (["3", "7", "7", "3"], "3", True),  # a tie goes to the answer drawn first
        (["3", "7", "7", "3"], "7", False),
        ([None, None, None, "5"], "5", True),  # no answer never wins
        ([None, "4", "9"], "4", True),
        (["", "", "4"], "4", False),
        (["7", "1/2", "7", "0.5", "1 / 2"], "1/2 0.5 1 / 2", True),  # one value in three writings
        ([None, None], "", False),
        ([], "", False),
    ],
)
def test_majority_and_its_tie_rule(answers: list[str | None], right: str, wins: bool) -> None:
    correct = [bool(answer) and answer in right for answer in answers]
    assert is_majority_right(correct, answers) is wins


def test_wilson_matches_published_figures() -> None:
    # Newcombe 1998 (Statistics in Medicine 17), table I, method 3
    for successes, n, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
    ]:
        estimate = wilson(successes, n)
        assert (round(estimate.low, 4), round(estimate.high, 4)) == (low, high)
    assert wilson(0, 20).low == 0.0
    assert round(wilson(0, 20).high, 4) == 0.1611
    assert wilson(20, 20).high == 1.0
    with pytest.raises(UserError, match="no proportion"):
        wilson(1, 0)


def test_bootstrap_covers_the_truth_about_95_times_in_100() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        estimate = bootstrap_mean(rng.beta(2, 5, size=60), seed=trial)
        hits += estimate.low <= 2 / 7 <= estimate.high
    assert 180 <= hits <= 198, f"{hits} of 200 intervals hold the true mean"


def test_bootstrap_is_a_function_of_its_seed() -> None:
    values = np.linspace(0, 1, 17)
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
    assert bootstrap_mean(values, seed=3) != bootstrap_mean(values, seed=4)
    with pytest.raises(UserError, match="at least one prompt"):
        bootstrap_mean([], seed=0)

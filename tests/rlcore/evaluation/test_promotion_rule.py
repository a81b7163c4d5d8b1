"""The gate promotes what is better and nothing else, however often it is asked."""

from itertools import product

import numpy as np
import polars as pl
import pytest

from rlcore.evaluation.promotion_rule import (
    ALPHA,
    Decision,
    Verdict,
    alpha_of,
    check_sets,
    decide,
    gain_interval,
    least_prompts,
)
from schemas.errors import UserError

ROWS = 500
SEEDS = pytest.mark.parametrize(
    "seed", [11, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (21, 22))]
)


def frame(values: np.ndarray, source: str = "maths", subset: str = "test") -> pl.DataFrame:
    return pl.DataFrame(
        {
            "uid": [f"{source}-{n:04d}" for n in range(len(values))],
            "data_source": source,
            "subset": subset,
            "value": values.astype(float),
        }
    )


def gate(champion: np.ndarray, candidate: np.ndarray, look: int = 1) -> Decision:
    return decide(frame(champion), frame(candidate), primary="all", look=look)


def answers(rng: np.random.Generator, share: float) -> np.ndarray:
    return rng.random(ROWS) < share


@SEEDS
def test_of_equal_pairs_at_most_one_in_twenty_is_promoted(seed: int) -> None:
    """A gate that promotes what is no better trades champions at random, week after week."""
    rng = np.random.default_rng(seed)
    verdicts = [gate(answers(rng, 0.6), answers(rng, 0.6)).verdict for _ in range(500)]
    assert verdicts.count(Verdict.PROMOTED) <= 25
    assert verdicts.count(Verdict.UNCERTAIN) >= 450


@SEEDS
def test_of_pairs_with_a_gain_of_a_tenth_four_in_five_are_promoted(seed: int) -> None:
    """A gate that holds what is better makes retraining pointless. Independent answers are the
    worst case: those of two models on the same prompts agree more often."""
    rng = np.random.default_rng(seed + 1)
    verdicts = [gate(answers(rng, 0.5), answers(rng, 0.6)).verdict for _ in range(200)]
    assert verdicts.count(Verdict.PROMOTED) >= 160


def test_all_looks_together_promote_what_is_equal_at_most_as_often_as_alpha() -> None:
    """Without the split, ten looks would promote an equal candidate one time in five."""
    wrong = [alpha_of(look) / 2 for look in range(1, 60)]  # the upper end of each interval
    assert sum(wrong) <= ALPHA
    assert sum(wrong) == pytest.approx(ALPHA)
    assert [alpha_of(look) for look in (1, 2, 3)] == [ALPHA, ALPHA / 2, ALPHA / 4]


def test_few_prompts_that_differ_prove_nothing() -> None:
    """Of two models that differ on four of 500 prompts, all four favour the second one time in
    sixteen: a bootstrap alone would promote it, far more often than it says."""
    gains = np.zeros(ROWS)
    gains[:5] = 1.0
    alone = gain_interval(gains, ALPHA)
    assert (alone.low, alone.value) == (0.0, 0.01)
    gains[5] = 1.0  # 2^-6 is below 0.025
    assert gain_interval(gains, ALPHA).low > 0
    assert gain_interval(gains, ALPHA / 2).low == 0.0
    assert gain_interval(-gains, ALPHA / 2).high == 0.0


def test_a_late_look_still_decides() -> None:
    """No number of draws resolves the share that a nightly retraining asks for after two weeks."""
    gains = np.zeros(1000)
    gains[:200] = 1.0
    assert gain_interval(gains, alpha_of(30)).low > 0
    assert gain_interval(-gains, alpha_of(30)).high < 0
    gains[10:200] = 0.0
    assert gain_interval(gains, alpha_of(30)).low == 0.0


def test_an_interval_is_that_of_all_resamples() -> None:
    gains = np.array([-1.0, 0.0, *([1.0] * 8)])
    small = np.array([-1.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    means = [np.mean(resample) for resample in product(small, repeat=6)]
    exact = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    found = gain_interval(small, 0.05)
    assert [found.value, found.low, found.high] == pytest.approx([0.5, *exact])
    assert gain_interval(gains, 0.05) == gain_interval(gains[::-1], 0.05), "order is no content"


def test_a_later_look_has_a_wider_interval() -> None:
    rng = np.random.default_rng(1)
    champion, candidate = answers(rng, 0.5), answers(rng, 0.58)
    first, third = (gate(champion, candidate, look).sets[0].gain for look in (1, 3))
    assert third.low < first.low < first.value < first.high < third.high
    assert first.value == third.value


def test_worse_uncertain_and_how_many_prompts_would_decide() -> None:
    rng = np.random.default_rng(2)
    champion = answers(rng, 0.5)
    worse = gate(champion, champion & (rng.random(ROWS) < 0.7))
    assert worse.verdict is Verdict.WORSE
    assert "held as worse: gain on all -" in worse.sentence()
    candidate = champion.copy()
    wrong, right = np.flatnonzero(~champion), np.flatnonzero(champion)
    candidate[wrong[:20]], candidate[right[:10]] = True, False
    few = gate(champion, candidate)
    assert few.verdict is Verdict.UNCERTAIN
    assert few.needed is not None
    assert few.needed > ROWS
    assert f"about {few.needed} prompts would decide" in few.sentence()
    times = -(-few.needed // ROWS) + 1
    decided = decide(
        frame(np.tile(champion, times)), frame(np.tile(candidate, times)), primary="all"
    )
    assert decided.verdict is not Verdict.UNCERTAIN, "the number that was promised does not decide"
    same = gate(champion, champion)
    assert (same.verdict, same.needed) == (Verdict.UNCERTAIN, None)
    assert "no number of prompts would decide" in same.sentence()


def test_a_guard_that_loses_more_than_the_margin_holds_a_better_candidate() -> None:
    rng = np.random.default_rng(3)
    better = frame(answers(rng, 0.4)), frame(answers(rng, 0.7))
    guarded = answers(rng, 0.9)
    lost = guarded & (rng.random(ROWS) < 0.95)

    def verdict(margin: float, kept: np.ndarray = lost) -> Decision:
        champion = pl.concat([better[0], frame(guarded, "safety")])
        candidate = pl.concat([better[1], frame(kept, "safety")])
        return decide(champion, candidate, primary="maths", guards=["safety:test"], margin=margin)

    assert verdict(0.1).verdict is Verdict.PROMOTED
    assert verdict(0.01).verdict is Verdict.WORSE
    assert "guards not passed: safety:test" in verdict(0.01).sentence()
    assert verdict(0.05).verdict is Verdict.UNCERTAIN
    assert verdict(0.0, guarded).verdict is Verdict.UNCERTAIN, "0 does not lie above -0"


def test_prompts_without_a_score_on_one_side_are_left_out() -> None:
    rng = np.random.default_rng(4)
    champion, candidate = frame(answers(rng, 0.3)), frame(answers(rng, 0.9))
    decision = decide(champion.head(400), candidate.tail(400), primary="all")
    assert decision.sets[0].prompts == 300
    assert decision.sets[0].champion == pytest.approx(champion.slice(100, 300)["value"].mean())


def test_a_set_that_is_not_there_and_one_that_is_too_small_are_refused() -> None:
    rows = pl.concat([frame(np.ones(100)), frame(np.ones(20), "safety", "hard")])
    check_sets(rows, "maths", [])
    with pytest.raises(UserError, match=r"retrain\.guards names the set 'safty'.*did you mean"):
        check_sets(rows, "all", ["safty"])
    with pytest.raises(UserError, match=r"20 test prompts.*fewer than 60; add 40 test rows"):
        check_sets(rows, "all", ["safety:hard"])


def test_the_least_number_of_prompts_is_the_first_that_can_tell_such_a_gain() -> None:
    """Given exactly: ten in a hundred more right answers and no fewer."""
    least = least_prompts()
    gains = np.zeros(least)
    gains[: least // 10] = 1.0
    assert gate(np.zeros(least), gains).verdict is Verdict.PROMOTED
    gains[0] = 0.0
    assert gate(np.zeros(least), gains).verdict is Verdict.UNCERTAIN

"""A difference between two evaluations is that of the prompts both have, and its interval right."""

from itertools import product

import numpy as np
import polars as pl
import pytest

from rlcore.algorithms.statistics import bootstrap_mean
from rlcore.results.paired import (
    METRICS,
    Condition,
    Difference,
    difference,
    mean_difference,
    prompt_values,
)
from schemas.errors import UserError
from tests.rlcore.results.evaluated import completions

WORSE = Condition.parse("accuracy < -0.01")
UIDS = [f"u{n:03d}" for n in range(500)]


def test_an_interval_is_that_of_all_resamples() -> None:
    """All 6^6 of them. At both quantiles their distribution jumps, from 3.5 standard errors of 2000
    draws below to more above, so that the draws must give the very same ends."""
    differences = np.array([-1.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    means = [np.mean(resample) for resample in product(differences, repeat=6)]
    exact = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    value, low, high = mean_difference(differences)
    assert value == pytest.approx(0.5)
    assert [low, high] == pytest.approx(exact.tolist())
    assert [low, high] == pytest.approx([-1 / 6, 1.0])


def test_an_interval_is_that_of_the_evaluation_s_bootstrap() -> None:
    """The same estimator, drawn by values instead of by rows."""
    lengths = np.random.default_rng(0).normal(3.0, 20.0, 400)
    of_rows = bootstrap_mean(lengths, seed=1)
    value, low, high = mean_difference(lengths)
    assert value == pytest.approx(of_rows.value)
    width = of_rows.high - of_rows.low
    assert [low, high] == pytest.approx([of_rows.low, of_rows.high], abs=0.06 * width)


def test_equal_evaluations_have_no_interval() -> None:
    assert mean_difference(np.zeros(500)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("drop", "least", "most"), [(0.1, 160, 200), (0.0, 0, 10)])
def test_a_drop_is_found_and_none_is_invented(drop: float, least: int, most: int) -> None:
    """200 pairs of evaluations on 500 prompts of different difficulty, each answered by chance:
    a policy worse by 0.10 fails in 80 % at least, an equal one in 5 % at most."""
    rng = np.random.default_rng(20)
    failed = 0
    for _ in range(200):
        chances = rng.beta(2.0, 1.0, len(UIDS))  # mean 2/3
        first = rng.random(len(UIDS)) < chances
        second = rng.random(len(UIDS)) < chances * (1 - 1.5 * drop)
        pair = difference("accuracy", _values(first), _values(second))
        assert pair is not None
        failed += WORSE.holds(pair)
    assert least <= failed <= most


def _values(right: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame({"uid": UIDS, "value": right.astype(float)})


def test_prompts_are_paired_by_uid_whatever_their_order() -> None:
    first = prompt_values(*completions({"a": True, "b": False, "c": True, "d": True}), "rl")
    second = prompt_values(*completions({"e": True, "c": False, "b": False, "a": True}), "rl")
    pair = difference("accuracy", first["accuracy"], second["accuracy"])
    assert pair is not None
    assert (pair.first, pair.second) == pytest.approx((2 / 3, 1 / 3))
    assert pair.value == pytest.approx(-1 / 3)
    assert (pair.pairs, pair.unmatched_first, pair.unmatched_second) == (3, 1, 1)
    longer = difference("length", first["length"], second["length"])
    assert longer is not None
    assert longer.value == pytest.approx(1 / 3)
    assert difference("score", first["score"], second["score"].filter(uid="e")) is None


def test_samples_of_a_prompt_count_as_one() -> None:
    sampled = {"a": [True, False, False, False], "b": [True, True]}
    values = prompt_values(*completions({"a": True, "b": True}, sampled), "rl")
    assert values["sampled_accuracy"]["value"].to_list() == [0.25, 1.0]
    assert set(values) == set(METRICS)


def test_answers_that_no_function_judged_have_no_accuracy() -> None:
    drawn, results = completions({"a": True, "b": True, "c": False})
    fewer = results.with_columns(num_samples=pl.col("num_samples") - 1)
    assert "accuracy" not in prompt_values(drawn, fewer, "rl")
    unjudged = results.filter(pl.col("metric") != "greedy/acc")
    assert set(prompt_values(drawn, unjudged, "rl")) == {"score", "length"}
    assert prompt_values(drawn, results, "sft") == {}
    timed_out = drawn.with_columns(
        outcome=pl.when(uid="b").then(pl.lit("timeout")).otherwise("outcome")
    )
    assert prompt_values(timed_out, fewer, "rl")["accuracy"]["uid"].to_list() == ["a", "c"]


@pytest.mark.parametrize(
    ("text", "low", "high", "holds"),
    [
        ("accuracy < -0.01", -0.2, -0.011, True),
        ("accuracy < -0.01", -0.2, -0.01, False),
        ("accuracy<-1e-2", -0.2, 0.3, False),
        ("length > 20", 20.5, 90.0, True),
        ("length > 20", 19.0, 90.0, False),
        (" score  >  .5 ", 0.6, 0.7, True),
    ],
)
def test_a_condition_holds_when_the_whole_interval_is_beyond(
    text: str, low: float, high: float, holds: bool
) -> None:
    condition = Condition.parse(text)
    pair = Difference(condition.metric, 0.0, 0.0, (low + high) / 2, low, high, 9, 1, 2, 0, 0)
    assert condition.holds(pair) is holds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("acuracy < 0", r"no metric 'acuracy'; did you mean 'accuracy'\?; there are accuracy, s"),
        ("greedy/acc < 0", "there is no metric 'greedy/acc'"),
        ("accuracy", "is no condition; write METRIC < NUMBER"),
        ("accuracy <= 0", "is no condition"),
        ("accuracy < none", "is no condition"),
        ("accuracy < nan", "is no condition"),
        ("", "is no condition"),
    ],
)
def test_a_wrong_condition_ends_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Condition.parse(text)

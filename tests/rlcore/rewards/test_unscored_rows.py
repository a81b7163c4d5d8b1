"""A stage stops when too much goes unscored, and never for what a policy wrote."""

import pytest

from rlcore.rewards.unscored_rows import (
    RewardFailureError,
    RewardTimeoutError,
    check_any_scored,
    check_unscored,
)
from schemas.rl import RewardFunction, RewardSection

SECTION = RewardSection(
    functions=(RewardFunction(name="gsm8k"),), max_error_fraction=0.1, max_timeout_fraction=0.2
)
OK, WRONG, NONE = ("ok", ""), ("wrong", ""), ("no_answer", "no box")
ERROR, ABORTED, TIMEOUT = ("error", "KeyError: x"), ("aborted", "gone"), ("timeout", "slow")


def test_answers_of_any_quality_are_scored_ones() -> None:
    check_unscored([WRONG] * 50 + [NONE] * 50, SECTION)
    check_unscored([], SECTION)


@pytest.mark.parametrize(
    ("outcomes", "stops"),
    [
        ([ERROR] + [OK] * 9, False),
        ([ERROR] * 2 + [OK] * 9, True),
        ([ERROR, ABORTED] + [OK] * 9, True),
        ([TIMEOUT] * 2 + [OK] * 8, False),
        ([TIMEOUT] * 3 + [OK] * 8, True),
        ([TIMEOUT] * 2 + [ERROR] + [OK] * 7, False),
    ],
)
def test_faults_of_ours_and_of_the_clock_have_a_bound_each(
    outcomes: list[tuple[str, str]], stops: bool
) -> None:
    """Together under one bound, a slow machine would hide a broken reward."""
    if not stops:
        check_unscored(outcomes, SECTION)
        return
    with pytest.raises(RewardFailureError):
        check_unscored(outcomes, SECTION)


def test_the_most_frequent_reason_is_told_with_its_remedy() -> None:
    outcomes = [ERROR] * 3 + [("error", "TypeError: y")] * 2 + [OK] * 15
    with pytest.raises(RewardFailureError) as error:
        check_unscored(outcomes, SECTION, rows="responses")
    assert str(error.value) == (
        "5 of 20 responses could not be scored (25.0%), above reward.max_error_fraction = 0.1; the"
        " most frequent reason, on 3 of them, is error: KeyError: x; correct the reward function or"
        " raise the bound"
    )
    with pytest.raises(RewardFailureError, match=r"raise reward\.timeout_s = 10, make the reward"):
        check_unscored([TIMEOUT] * 9, SECTION)


def test_rows_to_come_are_given_up_once_they_cannot_make_up() -> None:
    """Scoring an hour of rows whose batch is lost already helps nobody."""
    check_unscored([ERROR] * 10, SECTION, of=100)
    with pytest.raises(RewardFailureError, match=r"11 of 100 rows .*, the others were not tried"):
        check_unscored([ERROR] * 11, SECTION, of=100)


def test_a_long_reason_is_cut() -> None:
    with pytest.raises(RewardFailureError) as error:
        check_unscored([("error", "x" * 10_000)], SECTION)
    assert len(str(error.value)) < 500


def test_a_bound_of_zero_takes_no_failure_and_of_one_takes_all() -> None:
    strict = SECTION.model_copy(update={"max_error_fraction": 0.0})
    with pytest.raises(RewardFailureError):
        check_unscored([ERROR] + [OK] * 999, strict)
    check_unscored([ERROR] * 9, SECTION.model_copy(update={"max_error_fraction": 1.0}))


def test_rows_of_which_none_is_scored_name_what_happened() -> None:
    check_any_scored([], rows="rows")
    check_any_scored([TIMEOUT, ERROR, NONE], rows="rows")
    with pytest.raises(RewardTimeoutError) as late:
        check_any_scored([TIMEOUT] * 64, rows="rows of the round")
    assert str(late.value) == (
        "none of 64 rows of the round could be scored, 64 of them timed out; the most frequent"
        " reason, on 64, is timeout: slow; raise reward.timeout_s or make the function faster"
    )
    with pytest.raises(RewardFailureError, match=r"none of 3 rows could be scored, 1 of them tim"):
        check_any_scored([TIMEOUT, ERROR, ERROR], rows="rows")


def test_the_clock_and_our_faults_are_told_apart_by_their_type() -> None:
    """The diagnostics of a run that ended name the check that looks out for it."""
    with pytest.raises(RewardTimeoutError):
        check_unscored([TIMEOUT] * 9, SECTION)
    with pytest.raises(RewardFailureError) as fault:
        check_unscored([ERROR] * 9, SECTION)
    assert type(fault.value) is RewardFailureError

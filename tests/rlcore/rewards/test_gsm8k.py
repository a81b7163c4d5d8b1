"""The GSM8K reward: strict as verl has it, and numeric."""

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.rewards import gsm8k
from rlcore.rewards.types import Reward, RewardRow
from schemas.errors import UserError
from tests.inputs import GSM8K, reads


def row(response: str, truth: str | None = "72") -> RewardRow:
    return RewardRow("t", "gsm8k", response, truth, {}, "stop", 5)


def judge(mode: str, response: str, truth: str | None = "72") -> Reward:
    return gsm8k.scorer(mode)(row(response, truth))


def verl_strict(solution: str, truth: str) -> float:
    """What verl's compute_score(method="strict") computes, reimplemented from its definition."""
    found = re.findall("#### (\\-?[0-9\\.\\,]+)", solution[-300:] if solution else solution)
    if not found:
        return 0.0
    return 1.0 if found[-1].replace(",", "").replace("$", "") == truth else 0.0


# Each run against verl: response, ground truth, strict.
VERL = [
    ("#### 72", "72", True),
    ("#### 1,000", "1000", True),
    ("#### -5", "-5", True),
    ("#### 72%", "72", True),
    ("#### 3 #### 72", "72", True),
    ("####72", "72", False),
    ("####  72", "72", False),
    ("#### 72.", "72", False),
    ("#### 72.0", "72", False),
    ("#### $72", "72", False),
    (r"#### \boxed{72}", "72", False),
    ("#### 72 #### 3", "72", False),
    ("#### 72" + "x" * 294, "72", False),
    ("#### 72" + "x" * 293, "72", True),
]


@pytest.mark.parametrize(("response", "truth", "right"), VERL)
def test_strict_is_verl(response: str, truth: str, right: bool) -> None:
    reward = judge("strict", response, truth)
    assert reward.score == float(right) == verl_strict(response, truth)
    assert reward.correct is right


@given(st.text(alphabet="# 0123456789.,-$\n\\x", max_size=400), st.sampled_from(["7", "1000"]))
def test_strict_is_verl_on_anything(response: str, truth: str) -> None:
    assert judge("strict", response, truth).score == verl_strict(response, truth)


@pytest.mark.parametrize("response", ["#### 72 #### 3", "#### 7.2", "#### 720", "#### -72"])
def test_numeric_refuses_other_numbers(response: str) -> None:
    assert judge("numeric", response).outcome == "wrong"


@pytest.mark.parametrize("mode", gsm8k.MODES)
@pytest.mark.parametrize(
    "response",
    ["", "72", "#### ", "#### x", "####", "\0", "🦆" * 400, "#### \ud800", "#### ٧٢", "### 72"],
)
def test_no_answer_scores_nothing(mode: str, response: str) -> None:
    reward = judge(mode, response)
    assert (reward.outcome, reward.score, reward.correct) == ("no_answer", 0.0, False)


@pytest.mark.parametrize("response", ["#### .", "#### ,", "#### ...,"])
def test_a_number_without_digits_is_no_number(response: str) -> None:
    """verl takes it for a wrong answer, which matters where wrong answers earn a format score."""
    assert judge("strict", response).outcome == "wrong"
    assert judge("numeric", response).outcome == "no_answer"


def test_answers_are_written_one_way_for_counting() -> None:
    answers = {judge("numeric", f"#### {text}").answer for text in ("72", "72.0", "$72", "072.")}
    assert answers == {"72"}


def test_format_score_pays_for_a_wrong_answer_only() -> None:
    score = gsm8k.scorer("strict", format_score=0.1)
    assert [score(row(r)).score for r in ("#### 72", "#### 3", "3")] == [1.0, 0.1, 0.0]


@pytest.mark.parametrize("mode", gsm8k.MODES)
@pytest.mark.parametrize(
    "response",
    [
        "#### " + "7" * 100_000,
        "#### " + "." * 100_000,
        "####" + " " * 100_000 + "72",
        "#### " * 20_000,
        "####" + "$ " * 50_000,
        "#" * 100_000,
        r"\boxed{" * 15_000,
        "#### 1" + ",000" * 25_000,
        "#### 1" + " 000" * 25_000 + "0",
        "#### 1" + "{,}00" * 25_000,
        "#### " + "7" * 50_000 + "/" + "7" * 50_000,
        "#### 1e999999999",
        "#### 72 " + "}{" * 50_000,
        "#### 72" + "a2" * 50_000,
        r"#### \frac{" + "7" * 100_000,
    ],
)
def test_hostile_text_is_judged_at_once(mode: str, response: str) -> None:
    start = time.process_time()  # a busy machine takes longer; quadratic work takes minutes
    judge(mode, response)
    assert time.process_time() - start < 5.0


def test_a_hundred_thousand_digits_are_compared_exactly() -> None:
    digits = "7" * 100_000
    assert judge("numeric", f"#### {digits}.0", digits).correct is True
    assert judge("numeric", f"#### {digits[:-1]}8", digits).correct is False


@pytest.mark.parametrize("mode", gsm8k.MODES)
def test_a_row_without_ground_truth_is_an_error_not_a_zero(mode: str) -> None:
    with pytest.raises(UserError, match="no ground_truth"):
        judge(mode, "#### 72", None)


def test_a_ground_truth_that_is_no_number_is_an_error() -> None:
    with pytest.raises(UserError, match="ground_truth 'seven' is not a number"):
        judge("numeric", "#### 72", "seven")


@reads(GSM8K / "test.jsonl")
def test_every_gsm8k_solution_earns_the_reward() -> None:
    """The dataset's own solutions must be right by both modes, or training would punish them."""
    for line in (GSM8K / "test.jsonl").read_text().splitlines():
        solution = json.loads(line)["answer"]
        truth = solution.rpartition("#### ")[2].replace(",", "")
        assert judge("strict", solution, truth).correct
        assert judge("numeric", solution, truth).correct

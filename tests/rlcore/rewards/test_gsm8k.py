"""The GSM8K reward: strict as verl has it, and numeric."""

import json
import re
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.rewards import gsm8k
from rlcore.rewards.gsm8k import number_of, written
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


NUMERIC = {
    "#### 72": "72",
    "#### 72.": "72",
    "#### $72": "72",
    "#### 72.0": "72",
    "#### 72.00.": "72",
    "####72": "72",
    "####  72": "72",
    "####\n72": "72",
    r"#### \boxed{72}": "72",
    r"so it is \boxed{72}": "72",
    r"#### \$72": "72",
    "#### **72**": "72",
    "#### 72 dollars": "72",
    "#### 72%": "72",
    "#### 1,000": "1000",
    "#### $1,000.00": "1000",
    "#### -$5": "-5",
    "#### $-5": "-5",
    "#### −5": "-5",
    "#### 3 #### 72": "72",
    "#### 72\n#### ?": "72",
    "#### 0.5": ".50",
    "#### 072": "72",
    "#### (72)": "72",
    "#### –72": "-72",
    "#### 7½": "7.5",
    "#### 72 thousand": "72000",
    "#### 6 dozen": "72",
    "#### seventy-two": "72",
    "#### twenty students": "20",
    "#### The answer is 72.": "72",
    "#### 48 + 24 = 72 clips": "72",
    "#### 72 = x": "72",
    "#### 72 or 6 dozen": "72",
    "#### 7/2": "3.5",
    "#### 7 / 2 hours": "3.5",
    "#### 7 1/2": "7.5",
    r"#### 7\frac{1}{2}": "7.5",
    r"so \boxed{\frac{7}{2}}": "3.5",
    "#### -7/2": "-3.5",
    "#### 1e3": "1000",
    "#### 1{,}000": "1000",
    "#### 1 000": "1000",
    "#### 1\u202f000\u00a0000": "1000000",
    r"#### 1\,000.50": "1000.5",
    "#### 1'000": "1000",
    "#### 1,00,000": "100000",
    "#### 72 €": "72",
    "#### €72": "72",
    "#### USD 72": "72",
    "#### 72 km/h": "72",
    "#### 72 m^2": "72",
    "#### 72 cm²": "72",
    "#### 72. Because 8*9 = 72": "72",
    r"so \boxed{72\text{ eggs}} after 3 days": "72",
    "#### 72 (6 dozen)": "72",
    "#### 72 eggs (6 dozens)": "72",
    "#### 72 (72 clips)": "72",
    "#### 72 (1.2 hours)": "72",
    "#### 72 (72%)": "72",
    "#### 0.72 (72%)": ".72",
    "#### 7,200 ($72)": "7200",
    "#### x = 72": "72",
    "#### $x = 72$": "72",
    "#### x = -72": "-72",
    "#### total cost = $72": "72",
    "#### Answer: 72": "72",
    r"so \boxed{x = 72}": "72",
    "#### 72\n#### check = 8 * 9": "72",
}


@pytest.mark.parametrize("response", NUMERIC)
def test_every_way_of_writing_a_number_is_read(response: str) -> None:
    assert number_of(response) == Decimal(NUMERIC[response])


EXPRESSIONS = [
    *(
        "7/2",
        "1e3",
        "7 1/2",
        "7 or 8",
        "7 to 8",
        "7-8",
        "7 - 8",
        "7, 8",
        "7;8",
        "7:30",
        "7!",
        "7^2",
    ),
    *("7**2", "7*2", "7*x", "7x", "7 x 2", "7+1", "7 = 7*1", r"7\pi", "7√2", "7½", "7 and a half"),
    *("7 dozen", "7 squared", "7 is wrong", "7 percent", "7 M", "7 less four", "7i", "7 half"),
    *("7 millions", "7 twelfths", "7 fives", "7 lakhs", "7 too few apples", "7 → 8", "7 w"),
    *("7. Just kidding, 80", "7 at least", "7 below zero", "--7", "8 = 7", "7 + 1 = 7", "7xxxx"),
    *("7 million", "7k", "7.0.1", "7,5", "7 (7 of 8)", "7 apples and 2 pears", "7\u0667", "7 8"),
    *("7 (1 dozen)", "7 (8 eggs)", "7 (8)", "7(1)", "7 (7 million)", "7 (7 dozen)", "7 ($8)"),
    *("7 (7 eggs) or 8", "7 (or 8)", "7 (7 + 1)", "7 (8 if you count him)", "7 (7 eggs", "7 (2/3)"),
    *("x = 7 or 8", "x = 7, y = 8", "2x = 7", "x + 1 = 7", "-x = 7", "x = y = 7", "x == 7"),
    *(
        "x != 7",
        "x <= 7",
        "not x = 7",
        "minus: 7",
        "x = 7 + 1",
        "x^2 = 7",
        "1/x = 7",
        "x = 3 or x = 7",
    ),
    *(r"\boxed{7\text{ or }8}", r"\boxed{7+1}", "7. Or 8", "7/0", "7e9999", "1e99999999999"),
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_is_not_the_number_it_begins_with(expression: str) -> None:
    assert number_of(f"#### {expression}") != 7


def test_a_fraction_without_finite_decimals_stays_exact() -> None:
    """Rounded, 7/3 would equal a ground truth that it is not."""
    assert number_of("#### 7/3") == Fraction(7, 3)
    assert number_of("#### -2 1/3") == Fraction(-7, 3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("72.00"), "72"),
        (Decimal("100"), "100"),
        (Decimal("1e3"), "1000"),
        (Decimal("3.50"), "3.5"),
        (Decimal("-0.50"), "-0.5"),
        (Fraction(7, 3), "7/3"),
    ],
)
def test_equal_answers_are_written_alike_to_be_counted_as_one(
    value: Decimal | Fraction, text: str
) -> None:
    assert written(value) == text


def test_the_last_mark_counts_and_a_box_only_without_one() -> None:
    assert number_of("#### 1 then #### 2\n\\boxed{3}") == 2
    assert number_of(r"\boxed{3} then \boxed{4}") == 4
    assert number_of("so it is 5") is None


def test_a_box_that_was_cut_off_is_no_answer() -> None:
    assert number_of(r"\boxed{5}. Then \boxed{") is None
    assert number_of(r"\boxed{5}. Then \boxed{6") is None
    assert number_of("#### 5\nin a \\boxed{") == 5, "a number that is marked is complete"

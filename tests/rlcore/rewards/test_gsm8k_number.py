"""The one number that a response gives: every way of writing it, and no expression for it."""

from decimal import Decimal
from fractions import Fraction

import pytest

from rlcore.rewards.gsm8k_number import number_of, written

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

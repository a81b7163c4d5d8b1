"""Answers that are one number are compared exactly, without a library."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.rewards.math_number import Number, number_in_words, same_number, scaled
from rlcore.rewards.math_number import number_in as number_in_one_writing
from rlcore.rewards.math_text import in_latex


def number_in(text: str) -> Number | None:
    return number_in_one_writing(in_latex(text))


def same(truth: str, answer: str) -> bool:
    first, second = number_in(truth), number_in(answer)
    assert first is not None, truth
    assert second is not None, answer
    return same_number(first, second)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("−7.50", Fraction(-15, 2)),
        ("+.5", Fraction(1, 2)),
        ("17.", 17),
        ("1,000", 1000),
        ("1{,}000", 1000),
        (r"12\,345", 12345),
        (r"1\!000", 1000),
        ("1 000 000", 1_000_000),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{-3}{4}", Fraction(3, 4)),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac1{20}", Fraction(1, 20)),
        (r"\frac{0.5}{2}", Fraction(1, 4)),
        ("-3/4", Fraction(-3, 4)),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        (r"-1\frac12", Fraction(-3, 2)),
        ("1 1/2", Fraction(3, 2)),
        (r"1.2\times10^{3}", 1200),
        (r"1.2 \cdot 10^-3", Fraction(12, 10_000)),
        ("2.5e3", 2500),
        (r"0.\overline{3}", Fraction(1, 3)),
        (r"-1.2\overline{36}", Fraction(-68, 55)),
        (r".\bar9", 1),
    ],
)
def test_the_value_of_a_number(text: str, value: Fraction) -> None:
    number = number_in(text)
    assert number is not None
    assert number.worth == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "7x", "7!", "2 3", "1,00", "1,0000", "1 00", "--7", "7-", "1/0", r"\frac{1}{0}"),
        *(r"2\frac{3}{2}", "1/2/3", "7 or 8", "10^{3}", r"\sqrt{4}", "9" * 5000, "1e999", "(7)"),
        *(r"7\%\%x", "٧x", "1.2.3", r"3\overline{3}", r"0.\overline{}", r"0.\overline{3}3"),
    ],
)
def test_what_is_not_one_number(text: str) -> None:
    assert number_in(text) is None


@pytest.mark.parametrize(
    ("truth", "answer", "right"),
    [
        (r"50\%", "0.5", True),
        ("0.5", r"50\%", True),
        (r"50\%", "50", True),  # left out, as verl's rule for MATH drops the sign
        ("50", "50 percent", True),
        ("0.5", r"0.5\%", False),
        (r"0.5\%", "0.5", False),
        (r"50\%", r"5\%", False),
        (r"50\%", "0.05", False),
        (r"0\%", "0", True),
        (r"33\frac{1}{3}\%", r"\frac13", True),
        (r"8\text{ percent}", r"8 \%", True),
        (r"\frac{1}{3}", "0.333333", True),
        (r"\frac{1}{3}", "0.33333", False),
        (r"0.\overline{3}", "0.3333333", True),
        (r"0.\overline{3}", "0.3", False),
        (r"0.\overline{36}", r"\frac{36}{100}", False),
        (r"\frac{2}{3}", "0.666667", True),
        (r"\frac{2}{3}", "0.666666", False),
        (r"\frac{1}{3000000}", "0.0000005", False),
        (r"\frac{1}{3}", "0", False),
        ("0.333333", r"\frac{1}{3}", True),
        # No fraction of these needs more digits.
        (r"\frac{1}{8}", "0.1250001", False),
        ("0.5", "0.5000001", False),
        ("0.0000001", "0.0000002", False),
        ("5", "5.00", True),
    ],
)
def test_percentages_and_decimals(truth: str, answer: str, right: bool) -> None:
    assert same(truth, answer) is right


@given(st.fractions(), st.fractions())
def test_fractions_are_equal_as_python_says(first: Fraction, second: Fraction) -> None:
    assert same(str(first), str(first))
    assert same(str(first), str(second)) is (first == second)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("five", 5), ("Twelve", 12), ("twenty-one", 21), ("forty five", 45), ("zero", 0)),
        *(("one hundred and five", 105), ("two hundred thousand", 200_000)),
        ("one million two hundred thousand", 1_200_000),
        ("one thousand one hundred and one", 1101),
        *(("two thirds", Fraction(2, 3)), ("one-half", Fraction(1, 2))),
        ("seven and a half", Fraction(15, 2)),
        *(("two dozen", 24), ("a dozen", 12), ("eight squared", 64)),
        *(("minus seventy-two", -72), ("negative eight", -8)),
    ],
)
def test_numbers_in_words(text: str, value: Fraction) -> None:
    assert number_in_words(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "dozen", "a", "half", "and", "minus", "minus minus five", "five apples", "5"),
        *("ten one", "five six", "twenty twenty", "five forty", "twenty zero", "one two three"),
        *("five or six", "x" * 1000, "five " * 1000),
    ],
)
def test_words_are_read_as_a_whole_or_not_at_all(text: str) -> None:
    assert number_in_words(text) is None


def test_words_scale_in_turn_and_stay_small() -> None:
    assert scaled(Fraction(5, 2), ["million"]) == 2_500_000
    assert scaled(Fraction(3), ["dozen", "squared"]) == 1296
    assert scaled(Fraction(3), ["apples"]) is None
    assert scaled(Fraction(3), ["squared"] * 4) is None
    assert scaled(Fraction(10**16), ["million"]) is None

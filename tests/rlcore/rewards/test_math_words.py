"""Numbers in words are read as a whole, or not at all."""

from fractions import Fraction

import pytest

from rlcore.rewards.math_words import number_in_words, scaled


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
def test_what_is_said(text: str, value: Fraction) -> None:
    assert number_in_words(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "dozen", "a", "half", "and", "minus", "minus minus five", "five apples", "5"),
        *("ten one", "five six", "twenty twenty", "five forty", "twenty zero", "one two three"),
        *("five or six", "x" * 1000, "five " * 1000),
    ],
)
def test_what_says_no_number(text: str) -> None:
    assert number_in_words(text) is None


def test_words_scale_in_turn_and_stay_small() -> None:
    assert scaled(Fraction(5, 2), ["million"]) == 2_500_000
    assert scaled(Fraction(3), ["dozen", "squared"]) == 1296
    assert scaled(Fraction(3), ["apples"]) is None
    assert scaled(Fraction(3), ["squared"] * 4) is None
    assert scaled(Fraction(10**16), ["million"]) is None

r"""What math-verify would pay wrongly is not paid, and what it does not read is read."""

from fractions import Fraction

import pytest
from math_verify import parse, verify

from rlcore.rewards.math_formula import same_formula
from rlcore.rewards.math_text import in_latex

# math-verify takes each of these for equal.
WRONG = [
    (r"\{1, 2\}", "(2, 1)"),
    ("(1, 2)", r"\{1, 2\}"),
    ("1, 2", "(1, 2)"),
    ("5t", "5h"),
    ("x", "X"),
    ("2A", "2a"),
    ("1001_2", "1001_3"),
    ("1001_2", "1001"),
    ("e^{-50}", "e^{-51}"),
    ("x+e^{-50}", "x+e^{-51}"),
]


@pytest.mark.parametrize(("truth", "answer"), WRONG)
def test_what_math_verify_takes_for_equal(truth: str, answer: str) -> None:
    gold, given = (parse(rf"\boxed{{{text}}}", parsing_timeout=0) for text in (truth, answer))
    assert verify(gold, given, timeout_seconds=None), "the library decides it; drop the case"
    assert not same_formula(in_latex(truth), in_latex(answer))


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("(-\\infty, 3)", "x < 3"),
        ("(-\\infty, 3)", "3 > x"),
        ("[3, \\infty)", "x \\geq 3"),
        ("[0, 1)", "0 \\le x < 1"),
        ("[0, 1)", "1 > x \\ge 0"),
        ("[0, 1)", "x \\in [0, 1)"),
        (r"(-\infty,-1)\cup(1,\infty)", r"x<-1 \text{ or } x>1"),
        ("x > 2", "(2, \\infty)"),
        ("x > 2", "2 < x"),
        (r"\emptyset", r"\varnothing"),
        ("(1{,}000, 25)", "(1000, 25)"),
        ("(1, 2, 3)", "[1, 2, 3]"),
        (r"\left\{ 2 \right\}", "2"),
        (r"\{(1,2),(3,4)\}", r"\{(3,4),(1,2)\}"),
        (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
        (r"\frac{\pi}{2}", "1.5707963"),
        ("0.5x", r"\frac{x}{2}"),
        ("1001_2", "1001_{2}"),
        ("1-i", r"\frac{2}{1+i}"),  # a letter to math-verify
        ("e^{i\\pi}", "-1"),
        ("2i", "(1+i)^2"),
    ],
)
def test_one_value_in_two_writings(truth: str, answer: str) -> None:
    assert same_formula(in_latex(truth), in_latex(answer))


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("(-\\infty, 3)", "x \\le 3"),
        ("[0, 1]", "0 < x \\le 1"),
        ("[0, 1)", "(0, 1]"),
        ("[0, 1)", "0 \\le x < y"),
        ("(0, 1)", "0 < 1"),
        ("(4, 5)", "[4, 5]"),
        ("[1, 2]", "1, 2"),
        ("(3, -1)", "-1, 3"),
        ("(1,2),(3,4)", "(2,1),(3,4)"),
        (r"\pm 3", "3"),
        (r"\sqrt{2}", "1.41421"),
        (r"\sqrt{10^{30}+1}", "10^{15}"),
        (r"\{0\}", r"\emptyset"),
        *(("i", "-i"), ("i", "1"), ("i^2", "1"), ("x^2", "-1"), ("ix", "x"), ("ij", "-1")),
        *((r"\frac{1}{i-i}", "5"), (r"\frac{1}{3}+i", "0.33+i"), ("e^{i}", "e^{-i}")),
    ],
)
def test_nearly_right_is_wrong(truth: str, answer: str) -> None:
    assert not same_formula(in_latex(truth), in_latex(answer))


@pytest.mark.parametrize(
    "answer",
    [
        r"mod\frac{1}{2}\left(",
        r"10^\frac{1}{2}{0\ln",
        r"\frac{1}{2}} or {7",
        r"\frac{1}{2}}{",
        r"final answer \frac{1}{2} is \frac{1}{3}",
        r"answer: 7, no: \frac{1}{2} \left(",
        "$7$ or $\\frac{1}{2}$ \\left(",
    ],
)
def test_a_fraction_somewhere_in_a_text_is_not_its_value(answer: str) -> None:
    """math-verify looks for one where it cannot read the whole."""
    assert not same_formula(r"\frac{1}{2}", answer)


def test_an_answer_is_converted_to_the_unit_of_the_truth() -> None:
    assert same_formula(r"2\sqrt{3}", r"200\sqrt{3}", Fraction(1, 100))
    assert not same_formula(r"2\sqrt{3}", r"2\sqrt{3}", Fraction(1, 100))

r"""Plain text and LaTeX are one answer; what differs in value stays wrong."""

import pytest

from rlcore.rewards.math_answer import judge
from rlcore.rewards.math_text import in_latex

SAME = [
    ("√2", r"\sqrt{2}"),
    ("2√3", r"\sqrt{12}"),
    ("√(x+1)", r"\sqrt{x+1}"),
    ("∛8", "2"),
    ("∞", r"\infty"),
    ("infinity", r"\infty"),
    ("(-∞,2]", r"(-\infty,2]"),
    ("2·3", "6"),
    ("½", "0.5"),
    ("1½", r"\frac{3}{2}"),
    ("x² + 1", "x^2+1"),
    ("x¹⁰", "x^{10}"),
    ("2⁻¹", r"\frac12"),
    ("7 cm²", r"7\text{ cm}^2"),
    ("[1,2]∪[3,4]", r"[1,2]\cup[3,4]"),
    ("pi/2", r"\frac{\pi}{2}"),
    ("2*pi", r"2\pi"),
    ("x**12", "x^{12}"),
    ("**5**", "5"),
]


@pytest.mark.parametrize(("answer", "truth"), SAME)
def test_signs_of_plain_text_are_read(answer: str, truth: str) -> None:
    assert judge(answer, truth) == (True, "")
    assert judge(truth, answer)[0]


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        *(("√2", r"\sqrt{3}"), ("√23", "2√3"), ("√", "0"), ("√()", "0"), ("∞", r"-\infty")),
        *(("x²", "x2"), ("x²", "x^3"), ("²", "2"), ("2³", "23"), ("1½", "0.5"), ("½", "2")),
        *(("pi", "3.14"), ("spin", r"\pi"), ("x**12", "2x^1"), ("∛8", r"\sqrt{8}")),
    ],
)
def test_another_value_stays_wrong(answer: str, truth: str) -> None:
    assert not judge(answer, truth)[0]


@pytest.mark.parametrize("text", ["5", r"\frac{1}{2}", r"\pi", "spine", "a * b", "**bold**", ""])
def test_the_rest_is_left_alone(text: str) -> None:
    assert in_latex(text) == text

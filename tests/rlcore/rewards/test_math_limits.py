"""No text that a policy can write makes the comparison of values work for ever."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.rewards.math_limits import MAX_POWER_DIGITS, too_much


@given(
    st.lists(
        st.sampled_from(
            [*"0179xe^!/*+-=<,|()[]{} .", "99", "^{", "}", r"\frac{", "}{", r"\sqrt{", r"\binom{"]
        ),
        max_size=60,
    )
)
def test_the_limits_bound_every_exponent_that_a_text_can_mean(pieces: list[str]) -> None:
    """Whatever the nesting: a text that passes has no number to a power beyond the bound."""
    text = "".join(pieces)
    if too_much(text) is None:
        for base, exponent in re.findall(r"(\d+)\^\{?(\d+)", text):
            assert (len(base) - 1) * int(exponent) <= MAX_POWER_DIGITS


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("1+" * 125 + "1", "it has 251 characters, more than 250"),
        ("(" * 9 + "1" + ")" * 9, "its brackets are 9 deep, more than 8"),
        (r"\sum_{i=1}^{9} i", "it holds '\\\\sum', which is a computation and not a value"),
        ("7" * 101, "one of its numbers has more than 100 digits"),
        ("1e999", "one of its numbers has more than 100 digits"),
        (r"\sqrt{2}" * 9, "it holds 9 radicals, more than 8"),
        ("9^{9999}", "a power of it has more than 1000 digits"),
        ("x^{60}y^{60}", "its exponents add up to 120, more than 100"),
        ("((x+1)^{5})^{5}", "the exponents of its brackets multiply to 25, more than 24"),
        ("(a+b+c+d+f)^{9}", "its products of sums have"),
        (r"\begin{pmatrix}a&b\end{pmatrix}^4", "a matrix of it has a power above 3"),
        ("2^{3!}", "an exponent of it holds a factorial or a binomial"),
        ("1001!", "it holds the factorial of a number above 1000"),
        ("(20+3)!", "it holds the factorial of an expression"),
        (
            r"\binom{5}{2}^2",
            "it holds a binomial or permutation together with powers",
        ),
        (r"\binom{21}{k}", "it holds a binomial or permutation and a number above 20"),
    ],
)
def test_an_answer_beyond_a_limit_is_told_which(answer: str, reason: str) -> None:
    assert str(too_much(answer)).startswith(reason)


@pytest.mark.parametrize(
    "answer",
    [
        "7" * 100,
        "1e99",
        "(" * 8 + "1" + ")" * 8,
        "x^{50}y^{50}",
        "10^{999}",
        "(x+1)^{24}",
        "1000!",
        r"\binom{1000}{500}",
        r"\binom{20}{k}",
        r"\begin{pmatrix}a&b\end{pmatrix}^3",
        r"\frac{\sqrt{3}}{2} + \pi",
        "",
    ],
)
def test_an_answer_at_a_limit_is_still_compared(answer: str) -> None:
    """A right answer that is not compared by value earns nothing."""
    assert too_much(answer) is None

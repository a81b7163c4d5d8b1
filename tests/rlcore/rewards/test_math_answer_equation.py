r"""Which side of an equation is the answer: of what names the value, and of nothing else."""

import pytest

from rlcore.rewards.math_answer import sides_of

NAMED = [
    *(
        "x=5",
        "5=x",
        "x_1 = 5",
        r"x_{\max}=5",
        "f(2)=5",
        "f^{-1}(3)=5",
        "P(A)=5",
        "P(X>2)=5",
        "AB=5",
    ),
    *(r"\angle A=5", r"\theta=5", r"\text{Area}=5", "a+b=5", "xy=5", r"\gcd(10,15)=5"),
    *("total cost = 5", r"\sin x = 5"),
]


@pytest.mark.parametrize("answer", NAMED)
def test_what_names_a_value(answer: str) -> None:
    assert sides_of(answer, "5") == ["5"]


@pytest.mark.parametrize(
    "answer",
    [
        *("x+1=5", "2x=5", "-x=5", "x^2=5", r"\frac{x}{2}=5", "|x|=5", r"\sqrt{x}=5"),
        *(r"x\approx 5", "x≈5", "~5", "not x = 5", r"\text{not }x=5", "x=y=5", "x="),
    ],
)
def test_what_says_no_value(answer: str) -> None:
    assert sides_of(answer, "5") == []


@pytest.mark.parametrize(
    "answer", ["5", "x>5", "x=1, y=2", "x=1 or x=2", "x != 5", r"12~\text{cm}", "x == 5"]
)
def test_what_is_no_equation(answer: str) -> None:
    assert sides_of(answer, "5") is None


def test_all_values_of_a_chain_are_sides() -> None:
    assert sides_of(r"x=\frac{10}{2}=5", "5") == [r"\frac{10}{2}", "5"]
    assert sides_of("5!=120", "120") == ["5!", "120"]
    assert sides_of("f(x)=2x+1", "2x+1") == ["2x+1"]
    assert sides_of("x=5", "x=5") is None, "the truth is an equation too"

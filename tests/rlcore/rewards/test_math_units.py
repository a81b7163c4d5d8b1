r"""Units are dropped where one side has none, and compared where both have one."""

from fractions import Fraction

import pytest

from rlcore.rewards.math_text import in_latex
from rlcore.rewards.math_units import ratio, split_unit


def factor(truth: str, answer: str) -> Fraction | None:
    return ratio(split_unit(in_latex(truth))[1], split_unit(in_latex(answer))[1])


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        (r"5 \text{ cm}", "5"),
        (r"5\,\mathrm{cm}^2", "5"),
        (r"5 \text{ cm}^{2}", "5"),
        (r"60\,\mathrm{km}/\mathrm{h}", "60"),
        (r"2\sqrt{3}\mbox{ inches}", r"2\sqrt{3}"),
        ("5 centimeters", "5"),
        ("12 sq cm", "12"),
        ("6 cm^2", "6"),
        (r"90^\circ", "90"),
        (r"90^{\circ}", "90"),
        ("90°", "90"),
        (r"\$18", "18"),
        ("-$18", "-18"),
        (r"7\text{ apples}", "7"),
        ("7 red apples", "7"),
        ("5¢", "5"),
        ("€5", "5"),
        (r"7\text{ million}", "7 million"),
        (r"7\text{ million people}", "7 million"),
        # No units.
        ("7m", "7m"),
        ("7x", "7x"),
        ("2x^2", "2x^2"),
        (r"7\text{ or }", r"7\text{ or }"),
        (r"7\text{ is wrong}", r"7\text{ is wrong}"),
        (r"7\text{ at least}", r"7\text{ at least}"),
        (r"7\text{k}", r"7\text{k}"),
        *(
            (rf"7\text{{ {words}}}", rf"7\text{{ {words}}}")
            for words in (
                *("millionths", "twelfths", "sixteenths", "twentieths", "fives", "doubles"),
                *("lakhs", "percents", "nots", "too few apples", "w", "s o"),
            )
        ),
        (r"7\text{.5}", r"7\text{.5}"),
        (r"7\text{!}", r"7\text{!}"),
        ("7 or 8", "7 or 8"),
        ("7 times 3", "7 times 3"),
        ("7 appl", "7 appl"),
        (r"\text{cm}", r"\text{cm}"),
        (r"3\pi", r"3\pi"),
        (r"2\sin x", r"2\sin x"),
        (r"\$", r"\$"),
        ("", ""),
    ],
)
def test_what_is_a_unit(text: str, bare: str) -> None:
    assert split_unit(in_latex(text))[0] == in_latex(bare)


def test_one_letter_is_a_unit_where_the_other_side_has_one() -> None:
    assert split_unit("5 m", letters=True)[0] == "5"
    assert split_unit("5 x", letters=True)[0] == "5 x"


@pytest.mark.parametrize(
    ("truth", "answer", "expected"),
    [
        (r"5 \text{ m}", r"500 \text{ cm}", Fraction(1, 100)),
        (r"5 \text{ m}", "5", 1),
        ("5", r"5 \text{ m}", 1),
        (r"2\text{ hours}", "120 minutes", Fraction(1, 60)),
        (r"6\text{ ft}^2", r"6\text{ square feet}", 1),
        (r"6\text{ m}^2", r"6\text{ cm}^2", Fraction(1, 10_000)),
        (r"6\text{ meters squared}", r"6\text{ m}^2", 1),
        (r"45\text{ mph}", r"45\text{ miles per hour}", 1),
        (r"36\text{ km/h}", r"10\text{ m/s}", Fraction(36, 10)),
        (r"1\text{ L}", r"1000\text{ cm}^3", Fraction(1, 1000)),
        (r"\$1", "100 cents", Fraction(1, 100)),
        (r"12\text{ square units}", r"12\text{ cm}^2", 1),
        (r"12\text{ ways}", r"12\text{ different ways}", 1),
        (r"5\text{ cm}", r"5\text{ kg}", None),
        (r"6\text{ cm}^2", r"6\text{ cm}^3", None),
        (r"6\text{ m/s}", r"6\text{ s/m}", None),
        (r"5\text{ apples}", r"5\text{ oranges}", None),
        (r"5\text{ cm}", r"5\text{ apples}", None),
        (r"5\text{ apples per hour}", r"5\text{ pears per hour}", None),
    ],
)
def test_units_are_converted_or_refused(truth: str, answer: str, expected: Fraction | None) -> None:
    assert factor(truth, answer) == expected


def test_a_power_of_a_unit_stays_small() -> None:
    """A policy's exponent would be computed."""
    assert split_unit(r"7\text{ cm}^{9}")[1] is not None
    assert split_unit(r"7\text{ cm 99999999}")[1] is None

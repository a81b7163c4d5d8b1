"""Whole numbers come out as bash computes them; the rest is told."""

import pytest

from rlcore.verl.shell.expansion import Text, compute

VARIABLES = {"n": Text("4"), "t": Text("x"), "u": Text("", unset="$u has no value")}


def computed(expression: str) -> Text:
    return compute(Text(expression), lambda name: VARIABLES.get(name, Text("")))


@pytest.mark.parametrize(
    ("expression", "number"),
    [("1 + 2 * 3", "7"), ("(n + 1) * n", "20"), ("9 / 2", "4"), ("-9 / 2", "-4"), ("-9 % 4", "-1")],
)
def test_numbers(expression: str, number: str) -> None:
    assert computed(f" {expression} ") == Text(number)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("2**8", "is not arithmetic that is read here; write the number"),
        ("n > 1 ? 2 : 3", "is not arithmetic that is read here; write the number"),
        ("1 / 0", "is not arithmetic"),
        ("t + 1", "is not arithmetic that is read here; write the number"),
        ("9999999999 * 9999999999", "is not arithmetic that is read here; write the number"),
        ("9" * 5000, "is not arithmetic"),
        ("(" * 300 + "1" + ")" * 300, "is not arithmetic"),
    ],
)
def test_what_is_no_number_says_why(expression: str, why: str) -> None:
    found = computed(expression)
    assert found.value.startswith(f"$(({expression[:20]}")
    assert why in found.unknown or why in found.unset

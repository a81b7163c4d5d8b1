"""A value of verl's becomes ours, or the rule it breaks is said."""

from collections.abc import Callable
from typing import Any

import pytest

from rlcore.from_verl.entries import Unsupported, betas, count, number, one_of, switch


@pytest.mark.parametrize(
    ("convert", "value", "ours"),
    [
        (number, "1e-6", 1e-6),
        (count, 8.0, 8),
        (count, "16", 16),
        (switch, False, False),
        (betas, ["0.9", 0.95], [0.9, 0.95]),
        (one_of(fsdp="zero", none="off"), "fsdp", "zero"),
    ],
)
def test_a_value_is_converted_whatever_yaml_made_of_it(
    convert: Callable[[Any], Any], value: Any, ours: Any
) -> None:
    assert convert(value) == ours


@pytest.mark.parametrize(
    ("convert", "value", "rule"),
    [
        (number, True, "must be a number"),
        (count, 1.5, "must be a whole number"),
        (count, float("inf"), "must be a whole number"),
        (count, float("nan"), "must be a whole number"),
        (count, False, "must be a number"),
        (switch, 1, "must be True or False"),
        (switch, "True", "must be True or False"),
        (one_of(fsdp="zero"), "deepspeed", "must be one of fsdp"),
    ],
)
def test_a_value_that_is_none_breaks_a_rule(
    convert: Callable[[Any], Any], value: Any, rule: str
) -> None:
    with pytest.raises(ValueError, match=rule):
        convert(value)


@pytest.mark.parametrize(
    ("value", "nothing"),
    [(None, True), (False, True), (0, True), ("", False), ("sync", True), (1, False)],
)
def test_a_setting_that_is_switched_off_asks_for_nothing(value: Any, nothing: bool) -> None:
    """A verl config lists everything: told all of it, nobody reads what makes a difference."""
    assert Unsupported("no such thing", off=("sync",)).is_off(value) is nothing


def test_a_setting_that_is_on_by_default_asks_for_something_when_it_is_off() -> None:
    shuffled = Unsupported("prompts are always shuffled", True, off=(True,), is_on=True)
    assert [shuffled.is_off(value) for value in (None, True, False)] == [True, True, False]

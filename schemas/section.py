"""The base of every recipe section: frozen, no unknown keys, finite numbers, defaults validated."""

from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

_IS_RULE = "_is_rule_of_section"

S = TypeVar("S", bound="Section")


def rule(check: Callable[[S], Iterator[str]]) -> Callable[[S], Iterator[str]]:
    """Mark a method of a section that yields a sentence for each rule the section breaks: what,
    why and the remedy. All rules of a section are checked, so that one load reports all of them.
    """
    setattr(check, _IS_RULE, True)
    return check


def setting(default: Any, text: str, **limits: Any) -> Any:
    """Return a field of a section that may be left out: its default, what it says, and pydantic's
    limits of it (``ge``, ``gt``, ``le``, ``lt``, ``min_length``, ``pattern``)."""
    return Field(default=default, description=text, **limits)


class Section(BaseModel):
    """One frozen level of the recipe tree."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        broken = [sentence for check in _rules(type(self)) for sentence in check(self)]
        if broken:
            raise ValueError("\n".join(broken))
        return self


def _rules(section: type[Section]) -> Iterator[Callable[[Any], Iterator[str]]]:
    for base in reversed(section.__mro__):
        yield from (member for member in vars(base).values() if hasattr(member, _IS_RULE))

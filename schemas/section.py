"""The base of every recipe section: frozen, no unknown keys, finite numbers, defaults validated."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from schemas.errors import did_you_mean
from schemas.names import split_function

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


def known_or_own(names: Collection[str], kind: str = "function") -> AfterValidator:
    """Refuse what is neither one of ``names`` nor a ``kind`` of the user's."""

    def check(value: str) -> str:
        module, name = split_function(value)
        if value in names or (module and name.isidentifier()):
            return value
        raise ValueError(
            f"{value!r} is not one of {', '.join(names)} and not 'package.module:{kind}' or"
            f" 'path/to/file.py:{kind}'{did_you_mean(value, names)}"
        )

    return AfterValidator(check)


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

"""How a key of verl is translated: to one of our keys, together with others, or not, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class To:
    """One key that becomes one of ours. ``convert`` may raise ValueError with the rule that the
    value breaks."""

    ours: str
    convert: Callable[[Any], Any]
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """Read together with other keys by the function of that name in ``translate.TOGETHER``."""

    function: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """No counterpart. ``off``: values that switch it off, besides null, False and 0, or besides
    null only where it is on by default (``is_on``).

    ``differs``: without it the run learns something else; otherwise it is layout or bookkeeping.
    """

    why: str
    differs: bool = False
    off: tuple[Any, ...] = ()
    is_on: bool = False

    def is_off(self, value: Any) -> bool:
        """Return whether the value switches the feature off."""
        return (
            value is None or value in self.off or (not self.is_on and value in (False, 0, [], {}))
        )


Entry = To | Part | Unsupported


def number(value: Any) -> float:
    """Return a number; YAML reads ``1e-6`` as text."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return float(value)


def count(value: Any) -> int:
    """Return a whole number."""
    if not number(value).is_integer():
        raise ValueError("must be a whole number")
    return int(number(value))


def switch(value: Any) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise ValueError("must be True or False")
    return value


def text(value: Any) -> str:
    """Return text."""
    return str(value)


def betas(value: Any) -> list[float]:
    """Return AdamW's two momenta."""
    return [number(each) for each in value]


def one_of(**names: str) -> Callable[[Any], str]:
    """Return a conversion by name."""

    def convert(value: Any) -> str:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return names[value]

    return convert


ACTOR, ROLLOUT, REF, MODEL = (
    f"actor_rollout_ref.{role}" for role in ("actor", "rollout", "ref", "model")
)

"""A value of a shell variable or word, or why it is not known."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """``unknown``: why only running the script could tell the value, which is then as written.

    ``unset``: which variable without a value made it (partly) empty. Both are "" where there is no
    such thing.
    """

    value: str
    unknown: str = ""
    unset: str = ""

    @property
    def problem(self) -> str:
        """Why the value must not be used for a setting; "" when it may."""
        return self.unknown or self.unset


SHOWN = 80  # characters of a script that a sentence quotes
Value = Text | tuple[Text, ...]  # an array is a tuple


def shown(text: str) -> str:
    """Return text of a script for a sentence: on one line, and not too long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= SHOWN else f"{flat[:SHOWN]}..."


def join(texts: Iterable[Text]) -> Text:
    """Return the texts one after another; what is not known of one is not known of all."""
    value = unknown = unset = ""
    for text in texts:
        value += text.value
        unknown, unset = unknown or text.unknown, unset or text.unset
    return Text(value, unknown, unset)

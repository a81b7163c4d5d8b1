"""The error type whose messages are for the person who runs the pipeline."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Bad input, reported in one sentence: dotted path, value, rule, remedy."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest of ``choices``, or ``""`` when none is near.

    >>> did_you_mean("iteratons", ["iterations", "seed"])
    "; did you mean 'iterations'?"
    """
    near = get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""

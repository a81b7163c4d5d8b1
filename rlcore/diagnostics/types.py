"""The parts of a diagnostic check: the metrics so far, and a rule over them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from schemas.recipe import Recipe


class Stream:
    """The metrics that checks read: of this iteration and, oldest first, of those before.

    A value that is not finite counts as NaN in ``now`` and is left out of the histories.
    """

    __slots__ = ("_steps", "_values", "iteration", "now", "recipe")

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.iteration = 0
        self.now: dict[str, float] = {}
        self._values: dict[str, list[float]] = {}
        self._steps: dict[str, list[int]] = {}

    def add(self, iteration: int, values: Mapping[str, float]) -> None:
        """Move on to ``iteration``."""
        self.iteration = iteration
        # The metrics table stores no infinities, and a replay must see the same values as the run.
        self.now = {n: v if math.isfinite(v) else math.nan for n, v in values.items()}
        for name, value in self.now.items():
            if not math.isnan(value):
                self._values.setdefault(name, []).append(value)
                self._steps.setdefault(name, []).append(iteration)

    def history(self, name: str) -> Sequence[float]:
        """Return the finite values so far, this iteration's last."""
        return self._values.get(name, ())

    def steps(self, name: str) -> Sequence[int]:
        """Return the iterations of those values."""
        return self._steps.get(name, ())

    @property
    def last(self) -> dict[str, float]:
        """The newest finite value of each metric, of any iteration."""
        return {name: values[-1] for name, values in self._values.items()}

    def start(self, name: str, count: int) -> float | None:
        """Return the mean of the first ``count`` values, None while there are fewer."""
        values = self.history(name)[:count]
        return sum(values) / count if len(values) == count else None

    def recent(self, name: str, count: int) -> float | None:
        """Return the mean of the last ``count`` values, None while there are fewer."""
        values = self.history(name)[-count:]
        return sum(values) / count if len(values) == count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule.

    ``reads``: metrics an iteration must have for the rule to apply; none = applied once, to the
    recipe, at the start. ``measure`` returns the measured number, or None or NaN when there is none
    yet; without it, that is the first metric of ``reads``. A problem is a number at or above
    ``threshold`` (at or below it with ``below``), unless ``quiet`` explains it. ``says`` is a
    format string over ``value``, ``threshold``, ``now`` (the iteration's metrics), ``last`` (each
    metric's newest value) and ``lasted`` (iterations). ``patience``: iterations in a row until it
    is reported; ``fatal_after``: until the run ends, None = never. Where message or remedy depend
    on the cause, or on what the recipe has switched on, they are functions of the stream.
    """

    name: str
    reads: tuple[str, ...] = ()
    measure: Callable[[Stream], float | None] | None = None
    threshold: float | Callable[[Recipe], float]
    below: bool = False
    says: str | Callable[[Stream], str]
    remedy: str | Callable[[Stream], str]
    patience: int = 1
    fatal_after: int | None = None
    applies: Callable[[Recipe], bool] = lambda recipe: True
    quiet: Callable[[Stream], bool] = lambda stream: False

    def limit(self, recipe: Recipe) -> float:
        """Return the threshold under ``recipe``."""
        return self.threshold(recipe) if callable(self.threshold) else self.threshold

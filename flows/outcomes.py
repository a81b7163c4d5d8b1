"""What the runs of a study came to, and what is demanded of it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

COLUMNS = ("recipe", "values", "seed", "before", "rl", "rise", "iterations", "seconds")
NO_ROOM = 0.99  # held-out accuracy above which no rise is required
UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Outcome:
    """The result of one run. ``before``, ``rl``: held-out accuracy, of greedy answers or samples,
    of the model that RL started from (SFT's, or the base model) and of RL's; ``curve``: accuracy in
    validation, or of the samples trained on; ``seconds``: of all RL iterations, also those trained
    earlier. ``proxy``: ``proxy_and_truth``, with a reward model. ``values``: those of swept keys.
    ``machine``, ``commit``: of the process that trained."""

    recipe: str
    seed: int
    before: float
    rl: float
    iterations: int
    seconds: float
    curve: list[tuple[int, float]]
    proxy: "pl.DataFrame | None" = None
    values: str = ""
    machine: str = UNKNOWN
    commit: str = UNKNOWN

    @property
    def rise(self) -> float:
        """What RL adds to held-out accuracy."""
        return self.rl - self.before

    @property
    def name(self) -> str:
        """The recipe with what was swept."""
        return f"{self.recipe} {self.values}".rstrip()

    def row(self) -> dict[str, Any]:
        """Return what CSV and JSON say of the run, by ``COLUMNS``."""
        return {name: getattr(self, name) for name in COLUMNS}


def shortfalls(
    outcomes: Sequence[Outcome],
    *,
    min_rise: float | None = None,
    min_accuracy: float | None = None,
    min_spread: float | None = None,
) -> list[str]:
    """Return a sentence for each demand (shares; None = not made) that ``outcomes`` miss.

    Every run must rise by ``min_rise``, or end at ``NO_ROOM`` or more, and must end at
    ``min_accuracy``; the mean of the best recipe must exceed that of the worst by ``min_spread``
    and by more than twice the largest standard deviation over the seeds of any recipe.
    """
    missed = []
    for outcome in outcomes:
        run = f"{outcome.name} seed {outcome.seed}"
        if min_rise is not None and outcome.rise < min_rise and outcome.rl < NO_ROOM:
            missed.append(f"{run} rose by {outcome.rise:.3f}, not {min_rise:g}")
        if min_accuracy is not None and outcome.rl < min_accuracy:
            missed.append(f"{run} ended at {outcome.rl:.3f}, not {min_accuracy:g}")
    if min_spread is not None and outcomes:
        recipes = averages(outcomes)
        spread = max(r.rl for r in recipes) - min(r.rl for r in recipes)
        demanded = max(min_spread, 2 * max(r.deviation for r in recipes))
        if spread < demanded:
            missed.append(
                f"best and worst recipe end {spread:.3f} apart, not {demanded:.3f}"
                " (twice the largest deviation over seeds, or what was asked)"
            )
    return missed


@dataclass(frozen=True)
class Average:
    """Held-out accuracy of a recipe, with the values swept, over its seeds: means, and the
    sample standard deviation of the accuracy after RL (0 for a single seed)."""

    recipe: str
    seeds: int
    before: float
    rl: float
    deviation: float


def averages(outcomes: Sequence[Outcome]) -> list[Average]:
    """Return a row per recipe and swept values, in the order of their first appearance."""
    by_recipe: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_recipe.setdefault(outcome.name, []).append(outcome)
    return [
        Average(
            recipe=recipe,
            seeds=len(runs),
            before=statistics.mean(o.before for o in runs),
            rl=statistics.mean(o.rl for o in runs),
            deviation=statistics.stdev(o.rl for o in runs) if len(runs) > 1 else 0.0,
        )
        for recipe, runs in by_recipe.items()
    ]

"""What a study sweeps (``-o key=a,b``), what its runs came to, what is demanded, and its page."""

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.recipes.load import parse_override
from rlcore.recipes.text import value_text
from schemas.errors import UserError

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination. ``values``: the swept keys as ``key=value``, "" where nothing is swept."""

    overrides: dict[str, Any]
    values: str = ""


def variants(texts: Sequence[str]) -> list[Variant]:
    """Return every combination of the values in ``texts``, each ``key=value[,value...]``; the last
    key varies fastest.

    The values are items of a YAML list, so one that is a list itself is in brackets: ``[1],[1,2]``.
    Raises UserError where a key is given twice with values to sweep, or they are no YAML.
    """
    keys: dict[str, list[Any]] = {}
    for text in texts:
        path, _, given = text.partition("=")
        if "," in given:
            name, values = parse_override(f"{path}=[{given}]")
        else:
            name, value = parse_override(text)
            values = [value]
        if name in keys and max(len(values), len(keys[name])) > 1:
            raise UserError(f"-o {text}: {name} is given twice; write its values once: {name}=a,b")
        if len({json.dumps(value) for value in values}) < len(values):  # 1 is not true
            raise UserError(f"-o {text}: a value is there twice; leave one out")
        keys[name] = values
    swept = [name for name, values in keys.items() if len(values) > 1]
    combined = [dict(zip(keys, chosen, strict=True)) for chosen in product(*keys.values())]
    texts = [", ".join(f"{name}={value_text(one[name])}" for name in swept) for one in combined]
    return [Variant(one, text) for one, text in zip(combined, texts, strict=True)]


COLUMNS = ("recipe", "values", "seed", "before", "rl", "rise", "iterations", "seconds")
NO_ROOM = 0.99  # held-out accuracy above which no rise is required
UNKNOWN = "not recorded"


@dataclass(frozen=True)
class RunOutcome:
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


def shortfalls(
    outcomes: Sequence[RunOutcome],
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


def averages(outcomes: Sequence[RunOutcome]) -> list[Average]:
    """Return a row per recipe and swept values, in the order of their first appearance."""
    by_recipe: dict[str, list[RunOutcome]] = {}
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


_HEAD = """# Results

Written by `rl-pipeline study --results`; each figure is read from what its runs recorded.
"Before" and RL are the shares of held-out prompts answered correctly{sampled} by the model that RL
started from (SFT's, or the base model where there is no SFT) and by RL's; the deviation is the
sample standard deviation of RL over the seeds.
"""


def write_results(outcomes: Sequence[RunOutcome], path: Path, *, sampled: bool) -> None:
    """Write a row per recipe and swept values, then a row per run, whole or not at all."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(render(outcomes, sampled=sampled), encoding="utf-8")
    os.replace(partial, path)


def render(outcomes: Sequence[RunOutcome], *, sampled: bool) -> str:
    """Return the page."""
    parts = [_HEAD.format(sampled=" when sampled" if sampled else " by greedy answers")]
    for title, (heads, *rows) in tables(outcomes).items():
        lines = [heads, ["---"] * len(heads), *([c.replace("|", r"\|") for c in r] for r in rows)]
        parts += [f"## {title}\n", *(f"| {' | '.join(line)} |" for line in lines), ""]
    return "\n".join(parts)


def tables(outcomes: Sequence[RunOutcome]) -> dict[str, list[tuple[str, ...]]]:
    """Return by title a row per recipe and swept values, and a row per run; heads first, hardware
    and commit last."""
    means = [
        (
            *(one.recipe, str(one.seeds), f"{one.before:.3f}", f"{one.rl:.3f}"),
            f"{one.deviation:.3f}" if one.seeds > 1 else "one seed",
            f"{one.rl - one.before:+.3f}",
            "; ".join(dict.fromkeys(o.machine for o in outcomes if o.name == one.recipe)),
            "; ".join(dict.fromkeys(o.commit for o in outcomes if o.name == one.recipe)),
        )
        for one in averages(outcomes)
    ]
    runs = [
        (
            *(o.name, str(o.seed), f"{o.before:.3f}", f"{o.rl:.3f}", f"{o.rise:+.3f}"),
            *(str(o.iterations), f"{o.seconds:.0f}", o.machine, o.commit),
        )
        for o in outcomes
    ]
    where = ("hardware", "commit")
    over_seeds = ("recipe", "seeds", "before", "RL", "deviation", "rise", *where)
    of_run = ("recipe", "seed", "before", "RL", "rise", "iterations", "RL, s", *where)
    return {"Over the seeds": [over_seeds, *means], "Runs": [of_run, *runs]}

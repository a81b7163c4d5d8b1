"""The results of a study as Markdown: figures with hardware, commit and spread, all of them read
from what the runs recorded."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from flows.outcomes import Outcome, averages

_HEAD = """# Results

Written by `rl-pipeline study --results`; each figure is read from what its runs recorded.
"Before" and RL are the shares of held-out prompts answered correctly{sampled} by the model that RL
started from (SFT's, or the base model where there is no SFT) and by RL's; the deviation is the
sample standard deviation of RL over the seeds.
"""


def write_results(outcomes: Sequence[Outcome], path: Path, *, sampled: bool) -> None:
    """Write a row per recipe and swept values, then a row per run, whole or not at all."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(render(outcomes, sampled=sampled), encoding="utf-8")
    os.replace(partial, path)


def render(outcomes: Sequence[Outcome], *, sampled: bool) -> str:
    """Return the page."""
    means = [
        (
            average.recipe,
            str(average.seeds),
            f"{average.before:.3f}",
            f"{average.rl:.3f}",
            f"{average.deviation:.3f}" if average.seeds > 1 else "one seed",
            f"{average.rl - average.before:+.3f}",
            _joined(o.machine for o in outcomes if o.name == average.recipe),
            _joined(o.commit for o in outcomes if o.name == average.recipe),
        )
        for average in averages(outcomes)
    ]
    runs = [
        (
            *(o.name, str(o.seed), f"{o.before:.3f}", f"{o.rl:.3f}", str(o.iterations)),
            *(f"{o.seconds:.0f}", o.machine, o.commit),
        )
        for o in outcomes
    ]
    parts = [
        _HEAD.format(sampled=" when sampled" if sampled else " by greedy answers"),
        "## Over the seeds\n",
        _table(
            ("recipe", "seeds", "before", "RL", "deviation", "rise", "hardware", "commit"), means
        ),
        "\n## Runs\n",
        _table(
            ("recipe", "seed", "before", "RL", "iterations", "RL, s", "hardware", "commit"), runs
        ),
    ]
    return "\n".join(parts) + "\n"


def _joined(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([c.replace("|", r"\|") for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

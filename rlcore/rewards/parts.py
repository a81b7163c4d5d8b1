"""What each reward function contributed, as metrics."""

import json
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


def part_metrics(rewards: "pl.DataFrame") -> dict[str, float]:
    """Return ``reward/<function>/mean`` of a Rewards table: unweighted, over the rows that have it.

    A single function gets no metric, as it would equal ``critic/score/mean``.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for parts in rewards["parts"]:
        for name, value in json.loads(parts).items():
            values[name].append(value)
    if len(values) < 2:
        return {}
    return {f"reward/{name}/mean": sum(seen) / len(seen) for name, seen in sorted(values.items())}

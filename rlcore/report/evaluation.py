"""Evaluations beside each other, of checkpoints or of runs: figures with their intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rlcore.report.charts import number

WIDTH, ROW, EDGE = 160, 12, 4  # of the picture of a figure: one row a label
ACCURACIES = ("greedy/acc", "sampled/avg@", "sampled/pass@", "sampled/maj@")
SHARES = (*ACCURACIES, "clip_ratio", "unscored", "aborted", "judge_failed")
ALL = "all"


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of one label, with its 95 % interval; places are of the picture. ``colour``: the
    number of the label."""

    label: str
    value: str
    interval: str
    colour: int
    at: float
    low: float
    high: float
    y: float


@dataclass(frozen=True, slots=True)
class Row:
    """One metric on one part of the test split; a label without it has None."""

    part: str
    metric: str
    prompts: int
    cells: Sequence[Cell | None]
    height: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``rows``: what says how good it is. ``others``: the rest."""

    labels: Sequence[str]
    rows: Sequence[Row]
    others: Sequence[Row]


def of_checkpoints(eval_results: pl.DataFrame | None) -> Evaluation | None:
    """Return an ``eval_results`` table with a column per checkpoint; None without one."""
    if eval_results is None or not eval_results.height:
        return None
    names = eval_results["checkpoint"].unique(maintain_order=True)
    parts = {name: eval_results.filter(pl.col("checkpoint") == name) for name in names}
    return side_by_side(parts)


def of_runs(tables: Mapping[str, pl.DataFrame | None]) -> Evaluation | None:
    """Return the newest checkpoint of each run's ``eval_results``, a column per run."""
    last = {
        name: table.filter(pl.col("checkpoint") == table["checkpoint"][-1])
        for name, table in tables.items()
        if table is not None and table.height
    }
    return side_by_side({name: last.get(name, pl.DataFrame()) for name in tables}) if last else None


def side_by_side(tables: Mapping[str, pl.DataFrame]) -> Evaluation:
    """Return the rows of ``eval_results`` tables of one checkpoint each, by label."""
    found: dict[tuple[str, str, str], dict[str, dict[str, float]]] = {}
    for label, table in tables.items():
        for row in table.iter_rows(named=True):
            where = (row["data_source"], row["subset"], row["metric"])
            found.setdefault(where, {})[label] = row
    parts = {where[:2] for where in found}
    if len(parts) == 2:  # one part, and all of it
        found = {where: by_label for where, by_label in found.items() if where[0] != ALL}
    rows = [_row(where, by_label, list(tables)) for where, by_label in found.items()]
    main = [row for row in rows if row.metric.startswith(ACCURACIES)]
    if not main:  # nothing judges correctness
        main = [row for row in rows if row.metric.endswith("/score")]
    return Evaluation(list(tables), main, [row for row in rows if row not in main])


def _row(
    where: tuple[str, str, str], by_label: Mapping[str, Mapping[str, float]], labels: list[str]
) -> Row:
    source, subset, metric = where
    low, high = 0.0, 1.0
    if not any(part in metric for part in SHARES):
        low = min(0.0, *(row["ci_low"] for row in by_label.values()), 0.0)
        high = max(row["ci_high"] for row in by_label.values())

    def place(value: float) -> float:
        return EDGE + (value - low) / ((high - low) or 1.0) * (WIDTH - 2 * EDGE)

    cells = [
        None
        if (row := by_label.get(label)) is None
        else Cell(
            label=label,
            value=_figure(metric, row["value"]),
            interval=f"{_figure(metric, row['ci_low'])} to {_figure(metric, row['ci_high'])}",
            colour=index,
            at=place(row["value"]),
            low=place(row["ci_low"]),
            high=place(row["ci_high"]),
            y=index * ROW + ROW / 2,
        )
        for index, label in enumerate(labels)
    ]
    part = "all" if source == ALL else source if subset in ("test", ALL) else f"{source}, {subset}"
    prompts = int(max(row["num_prompts"] for row in by_label.values()))
    return Row(part, metric, prompts, cells, len(labels) * ROW)


def _figure(metric: str, value: float) -> str:
    return f"{value:.3f}" if any(part in metric for part in SHARES) else number(value)

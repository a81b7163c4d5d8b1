"""Evaluations beside each other, of checkpoints or of runs: figures with their intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rlcore.report.text import number

ACCURACIES = ("greedy/acc", "sampled/avg@", "sampled/pass@", "sampled/maj@")
WIN_RATE = "win_rate"
SHARES = (*ACCURACIES, WIN_RATE, "clip_ratio", "unscored", "aborted", "judge_failed")
ALL = "all"


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of one label, with its 95 % interval: as text, and as places in percent of the
    row's scale. ``colour``: the number of the label."""

    value: str
    interval: str
    colour: int
    at: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """A metric on a part of the test split; None for a label without it. ``is_zero``: of all."""

    part: str
    metric: str
    prompts: int
    samples: int
    cells: Sequence[Cell | None]
    is_zero: bool


@dataclass(frozen=True, slots=True)
class EvaluationTable:
    """``rows``: what says how good it is. ``others``: the rest."""

    labels: Sequence[str]
    rows: Sequence[EvaluationRow]
    others: Sequence[EvaluationRow]

    @property
    def parts(self) -> dict[str, list[EvaluationRow]]:
        """``rows`` by the part of the test split."""
        names = dict.fromkeys(row.part for row in self.rows)
        return {name: [row for row in self.rows if row.part == name] for name in names}


def of_checkpoints(eval_results: pl.DataFrame | None) -> EvaluationTable | None:
    """Return an ``eval_results`` table with a column per checkpoint; None without one."""
    if eval_results is None or not eval_results.height:
        return None
    parts = eval_results.partition_by("checkpoint", as_dict=True, maintain_order=True)
    return side_by_side({name: part for (name,), part in parts.items()})


def of_runs(tables: Mapping[str, pl.DataFrame | None]) -> EvaluationTable | None:
    """Return the newest checkpoint of each run's ``eval_results``, a column per run."""
    last = {
        name: table.filter(pl.col("checkpoint") == table["checkpoint"][-1])
        for name, table in tables.items()
        if table is not None and table.height
    }
    return side_by_side({name: last.get(name, pl.DataFrame()) for name in tables}) if last else None


def side_by_side(tables: Mapping[str, pl.DataFrame]) -> EvaluationTable:
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
    main += [row for row in rows if row.metric.startswith(WIN_RATE)]
    return EvaluationTable(list(tables), main, [row for row in rows if row not in main])


def _row(
    where: tuple[str, str, str], by_label: Mapping[str, Mapping[str, float]], labels: list[str]
) -> EvaluationRow:
    source, subset, metric = where
    is_share = any(part in metric for part in SHARES)
    low, high = 0.0, 1.0
    if not is_share:
        low = min(0.0, *(row["ci_low"] for row in by_label.values()), 0.0)
        high = max(row["ci_high"] for row in by_label.values())

    def cell(colour: int, row: Mapping[str, float]) -> Cell:
        figures = [row[name] for name in ("value", "ci_low", "ci_high")]
        value, least, most = (f"{v:.3f}" if is_share else number(v) for v in figures)
        places = (100 * (v - low) / ((high - low) or 1.0) for v in figures)
        return Cell(value, f"{least} to {most}", colour, *places)

    cells = [
        cell(colour, by_label[label]) if label in by_label else None
        for colour, label in enumerate(labels)
    ]
    rows = by_label.values()
    return EvaluationRow(
        part=source if source == ALL or subset in ("test", ALL) else f"{source}, {subset}",
        metric=metric,
        prompts=int(max(row["num_prompts"] for row in rows)),
        samples=int(max(row["num_samples"] for row in rows)),
        cells=cells,
        is_zero=all(row["value"] == 0 for row in rows),
    )

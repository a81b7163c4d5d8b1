"""What is in a prepared dataset, as tables for people: counts, splits, lengths, rejects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.data.rows import REMEDIES

COLUMNS = ("source", "split", "subset", "reason", "figure", "value")  # of ``figures``


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table; every row has a cell per column."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def datasheet(summary: Mapping[str, Any]) -> list[Sheet]:
    """Return the tables of ``PreparedData.summary``, which the dataset's metadata hold too."""
    read: Mapping[str, int] = summary["rows_read"]
    rejects = [(*name.rsplit("/", 1), count) for name, count in summary["rejects"].items()]
    prompts = [
        (*_split_source_subset(name), f"{count:,}") for name, count in summary["prompts"].items()
    ]
    demonstrations = [(name, f"{count:,}") for name, count in summary["demonstrations"].items()]
    lengths = [
        (
            what.replace("_", " "),
            f"{summary[f'{what}_mean']:,.1f}",
            *(f"{summary[f'{what}_{figure}']:,}" for figure in ("p95", "max")),
        )
        for what in ("prompt_tokens", "demonstration_tokens")
    ]
    return [
        Sheet("Rows read", ("source", "rows"), [(name, f"{n:,}") for name, n in read.items()]),
        Sheet("Prompts", ("split", "source", "subset", "rows"), prompts),
        Sheet("Demonstrations", ("split", "rows"), demonstrations),
        Sheet("Lengths", ("what", "mean", "95 % below", "longest"), lengths),
        Sheet(
            "Rejects",
            ("source", "reason", "rows", "of the source", "to keep them"),
            [
                (source, reason, f"{n:,}", f"{n / read[source]:.2%}", REMEDIES.get(reason, ""))
                for source, reason, n in rejects
            ],
        ),
    ]


def figures(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per figure of ``PreparedData.summary``, with the keys ``COLUMNS``: of which
    split, source, subset and reject reason it is (None: of all), and its value.

    ``figure``: "rows_read", "prompts", "demonstrations" and "rejects" count rows; the others are
    lengths in tokens.
    """
    rows: list[dict[str, Any]] = []

    def add(figure: str, value: float, **of: str) -> None:
        rows.append({**dict.fromkeys(COLUMNS), "figure": figure, **of, "value": value})

    for source, count in summary["rows_read"].items():
        add("rows_read", count, source=source)
    for name, count in summary["prompts"].items():
        split, source, subset = _split_source_subset(name)
        add("prompts", count, split=split, source=source, subset=subset)
    for split, count in summary["demonstrations"].items():
        add("demonstrations", count, split=split)
    for name, count in summary["rejects"].items():
        source, _, reason = name.rpartition("/")
        add("rejects", count, source=source, reason=reason)
    for what in ("prompt_tokens", "demonstration_tokens"):
        for figure in ("mean", "p95", "max"):
            add(f"{what}_{figure}", summary[f"{what}_{figure}"])
    return rows


def _split_source_subset(name: str) -> tuple[str, str, str]:
    """Split "train/openai/gsm8k/train": a source may hold slashes."""
    split, _, rest = name.partition("/")
    source, _, subset = rest.rpartition("/")
    return split, source, subset

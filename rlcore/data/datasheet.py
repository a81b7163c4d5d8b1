"""What is in a prepared dataset, as tables for people: counts, splits, lengths, rejects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.data.screen import REMEDIES


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table; every row has a cell per column."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def datasheet(summary: Mapping[str, Any]) -> list[Sheet]:
    """Return the tables of ``PreparedData.summary``, as it stands in the dataset's metadata too."""
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


def _split_source_subset(name: str) -> tuple[str, str, str]:
    """Split "train/openai/gsm8k/train": a source may hold slashes."""
    split, _, rest = name.partition("/")
    source, _, subset = rest.rpartition("/")
    return split, source, subset

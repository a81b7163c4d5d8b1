"""The prepare_data stage: sources -> Prompts, Demonstrations and Rejects."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import polars as pl

from rlcore.data.combine import Gathered, screen
from rlcore.data.prepare_part import ASKED, SAID, Kept, Prepared, Work, prepare_part
from rlcore.data.read import parts_of
from rlcore.data.rows import Reject, check_rejects
from rlcore.data.split import NO_DEMONSTRATIONS, first_for_test, last_for_validation, no_prompts
from rlcore.data.write import demonstration_columns, prompts_table, rejects_table
from rlcore.envs.process import tools_of
from rlcore.models.chat import Tools
from rlcore.store.tables import TableFile, write_table
from schemas.data import DataSection
from schemas.environment import EnvironmentSection
from schemas.errors import UserError
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

Table = TypeVar("Table")


@dataclass(frozen=True, slots=True)
class PreparedData(Generic[Table]):
    """``tables``: prompts, demonstrations, rejects. ``summary``: counts of rows per split, subset
    and reject reason, and lengths in tokens, JSON-ready (``rlcore/data/datasheet.py`` reads it).
    ``origins``: of tables in memory, the source of each prompt and its row there."""

    tables: dict[str, Table]
    summary: dict[str, Any]
    origins: list[tuple[str, int]] = field(default_factory=list)

    def sentence(self) -> str:
        """Return the counts in one line: prompts and demonstrations by split, rejected rows."""
        rejects = _summed(self.summary["rejects"], lambda name: name.rpartition("/")[2])
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in rejects.most_common())
        return (
            f"prepared {_by_split(self.summary['prompts'])} prompts and"
            f" {_by_split(self.summary['demonstrations'])} demonstrations;"
            f" {self.summary['rows_rejected']:,} rows rejected{f' ({reasons})' if reasons else ''}"
        )


def prepare_for(recipe: Recipe, tokenizer: "ChatTokenizer") -> PreparedData[pl.DataFrame]:
    """Make the tables of a run of ``recipe``.

    Raises ``UserError`` as ``prepare`` does, and where there are no validation prompts.
    """
    return _in_memory(_ready_for(recipe, tokenizer, None))


def prepare_files(
    recipe: Recipe, tokenizer: "ChatTokenizer", folder: Path, kind: str
) -> PreparedData[TableFile]:
    """Make the tables of ``prepare_for`` as files in ``folder``, for an artifact of ``kind``.

    Rows are kept there too on their way; in memory are some 70 bytes of each, and its reject.
    Raises ``UserError`` as ``prepare_for`` does.
    """
    ready = _ready_for(recipe, tokenizer, folder)
    files = {
        name: write_table(name, folder / f"{name}.parquet", frames, kind)
        for name, frames in ready.tables()
    }
    read = {name: pl.scan_parquet(file.path) for name, file in files.items()}
    return PreparedData(files, ready.summary(read))


def prepare(
    data: DataSection,
    *,
    tokenizer: "ChatTokenizer",
    seed: int,
    sft_max_tokens: int | None,
    environment: EnvironmentSection | None = None,
) -> PreparedData[pl.DataFrame]:
    """Make the tables, encoded by ``tokenizer``; equal arguments and sources give equal bytes.

    ``environment``: makes rows of its kind, and has the tools that the template shows.
    ``sft_max_tokens`` None: no SFT follows, so there may be no demonstrations. Raises ``UserError``
    for a source or filter that cannot be used, too many rejected rows, or a split that ends empty.
    """
    work = Work(data, _tools(environment), sft_max_tokens)
    return _in_memory(_ready(work, tokenizer, seed, environment))


def _in_memory(ready: "_Ready") -> PreparedData[pl.DataFrame]:
    tables = {name: pl.concat(frames) for name, frames in ready.tables()}
    origins = ready.prompts.keys.select("source", "row").rows()
    lazy = {name: table.lazy() for name, table in tables.items()}
    return PreparedData(tables, ready.summary(lazy), origins)


def _tools(environment: EnvironmentSection | None) -> Tools:
    return () if environment is None else tools_of(environment)


def _ready_for(recipe: Recipe, tokenizer: "ChatTokenizer", folder: Path | None) -> "_Ready":
    sft_max_tokens = recipe.sft.max_tokens if recipe.sft.enabled else None
    work = Work(recipe.data, _tools(recipe.environment), sft_max_tokens, folder)
    ready = _ready(work, tokenizer, recipe.seed, recipe.environment)
    if "validation" not in _splits(ready.prompts):
        raise UserError(no_prompts("validation"))
    return ready


def _ready(
    work: Work, tokenizer: "ChatTokenizer", seed: int, environment: EnvironmentSection | None
) -> "_Ready":
    """Prepare every row by itself, then compare them; see ``prepare``."""
    prepared: list[Prepared] = []
    totals: Counter[str] = Counter()
    for part in parts_of(work.data, seed, environment):
        totals[part.source] += len(part)
        prepared.append(prepare_part(tokenizer, work, part))
    before = sum((part.before for part in prepared), Counter[str]())
    solved = any("train" in _splits(part.demonstrations) for part in prepared)
    if not before["train"] and not work.unscored and solved:  # their prompts could be asked
        return _ready(replace(work, unscored=True), tokenizer, seed, environment)
    ready = _Ready(prepared, dict(totals), len(tokenizer), work.data)
    _check_rejects(ready.lost, totals, work.data)
    ready.check_splits(before)
    if work.sft_max_tokens is not None and "train" not in _splits(ready.demonstrations):
        raise UserError(NO_DEMONSTRATIONS)
    return ready


def _splits(rows: Kept | Gathered) -> set[str]:
    return set(rows.keys["split"].unique())


def _check_rejects(rejects: list[pl.DataFrame], totals: dict[str, int], data: DataSection) -> None:
    found = pl.concat(rejects)
    lost = found.group_by("source").agg(pl.col("row").n_unique()).rows()
    if any(count > data.max_reject_fraction * totals[source] for source, count in lost):
        check_rejects([Reject(*row) for row in found.iter_rows()], totals, data)


class _Ready:
    """All rows that can be used, on their way to the tables."""

    def __init__(
        self,
        prepared: Sequence[Prepared],
        totals: dict[str, int],
        vocab_size: int,
        data: DataSection,
    ) -> None:
        prompts = Gathered([(part.source, part.prompts) for part in prepared])
        demonstrations = Gathered([(part.source, part.demonstrations) for part in prepared])
        self.prompts, self.demonstrations = prompts, demonstrations
        self.lost = [rejects_table([]), *(part.rejects for part in prepared)]
        self._totals, self._vocab_size = totals, vocab_size
        first = first_for_test(prompts.draws().to_numpy(), data.test_fraction)
        for rows in (prompts, demonstrations):
            rows.hold_out("test", pl.col("draw") >= pl.lit(first, pl.UInt64))
        prompts.keys = prompts.keys.sort("split", maintain_order=True)
        demonstrations.keys = demonstrations.keys.filter(pl.col("split") != "test")
        if data.decontaminate or data.deduplicate != "off":
            self._compare(data)
        last = last_for_validation(prompts.draws().to_numpy(), data.validation_fraction)
        for rows in (prompts, demonstrations):
            rows.hold_out("validation", pl.col("draw") <= pl.lit(last, pl.UInt64))

    def _compare(self, data: DataSection) -> None:
        """Drop the rows that repeat others, or evaluation."""
        prompts, demonstrations = self.prompts, self.demonstrations
        held = {split: prompts.asked(split) for split in ("test", "validation")}
        others = prompts.keys.filter(pl.col("split") != "test")
        dropped = screen(prompts, others, ASKED, held, data)
        self.lost.append(prompts.rejects(others, dropped))
        prompts.leave_out(others[_places(dropped)], "part", "at")
        leaked = (i for i, (reason, _) in dropped.items() if reason == "contaminated")
        demonstrations.leave_out(others[_places(leaked)], "source", "row")
        dropped = screen(demonstrations, demonstrations.keys, SAID, held, data)
        self.lost.append(demonstrations.rejects(demonstrations.keys, dropped, "demonstration: "))
        demonstrations.leave_out(demonstrations.keys[_places(dropped)], "part", "at")

    def check_splits(self, before: Counter[str]) -> None:
        """Raise UserError for a split without prompts; ``before``: of each, before filters."""
        left = _splits(self.prompts)
        for split in ("train", "validation", "test"):
            if before[split] and split not in left:
                raise UserError(
                    f"data: none of {before[split]} {split} prompts is left after preparation;"
                    " loosen data.filters, data.max_prompt_tokens or data.validation_fraction"
                )
        for split in ("train", "test"):
            if split not in left:
                raise UserError(no_prompts(split))

    def tables(self) -> Iterator[tuple[str, Iterator[pl.DataFrame]]]:
        """Yield each table, in pieces."""
        yield "prompts", chain([prompts_table([])], self.prompts.frames())
        yield "demonstrations", chain([demonstration_columns([])], self.demonstrations.frames())
        yield "rejects", iter([pl.concat(self.lost).sort("source", "row", maintain_order=True)])

    def summary(self, tables: Mapping[str, pl.LazyFrame]) -> dict[str, Any]:
        """Return ``PreparedData.summary`` of ``tables``."""
        # A row that is rejected as a prompt and as a demonstration is one row.
        rejected = tables["rejects"].unique(["source", "row", "reason"], maintain_order=True)
        lengths = {
            "prompt_tokens": self.prompts.keys["tokens"].to_numpy(),
            "demonstration_tokens": self.demonstrations.keys["tokens"].to_numpy(),
        }
        return {
            "rows_read": self._totals,
            "prompts": _counts(tables["prompts"], "split", "data_source", "subset"),
            "demonstrations": _counts(tables["demonstrations"], "split"),
            "rejects": _counts(rejected, "source", "reason"),
            "rows_rejected": rejected.unique(["source", "row"]).select(pl.len()).collect().item(),
            "vocab_size": self._vocab_size,
            **{key: figure for name, s in lengths.items() for key, figure in _lengths(name, s)},
        }


def _places(places: Iterable[int]) -> pl.Series:
    return pl.Series(list(places), dtype=pl.UInt32)


def _counts(table: pl.LazyFrame, *columns: str) -> dict[str, int]:
    """Return {values of ``columns`` joined by "/": rows}, in order of first appearance."""
    groups = table.group_by(columns, maintain_order=True).len().collect()
    return {"/".join(row[:-1]): row[-1] for row in groups.iter_rows()}


def _lengths(name: str, tokens: np.ndarray) -> Iterator[tuple[str, float]]:
    yield f"{name}_mean", round(float(tokens.mean()), 2) if len(tokens) else 0.0
    yield f"{name}_p95", int(np.quantile(tokens, 0.95, method="higher")) if len(tokens) else 0
    yield f"{name}_max", int(tokens.max(initial=0))


def _summed(counts: Mapping[str, int], part: Callable[[str], str]) -> Counter[str]:
    summed: Counter[str] = Counter()
    for name, count in counts.items():
        summed[part(name)] += count
    return summed


def _by_split(counts: Mapping[str, int]) -> str:
    splits = _summed(counts, lambda name: name.partition("/")[0]).most_common()
    return " + ".join(f"{count:,} {split}" for split, count in splits) or "no"

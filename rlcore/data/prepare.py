"""The prepare_data stage: sources -> Prompts, Demonstrations and Rejects."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import polars as pl

from rlcore.data.combine import TEST, TRAIN, Gathered, counts_of
from rlcore.data.prepare_part import ASKED, SAID, SPLITS, Prepared, Work, prepare_part
from rlcore.data.read import parts_of
from rlcore.data.rows import Reject, check_rejects
from rlcore.data.screen import screen
from rlcore.data.split import NO_DEMONSTRATIONS, first_for_test, last_for_validation, no_prompts
from rlcore.data.write import demonstrations_table, prompts_table, rejects_table
from rlcore.envs.process import tools_of
from rlcore.models.chat import Tools
from rlcore.store.tables import TableFile, TableWriter
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
    ready = _ready_for(recipe, tokenizer, None)
    return PreparedData(ready.in_memory(), ready.summary(), ready.origins())


def prepare_files(
    recipe: Recipe, tokenizer: "ChatTokenizer", folder: Path, kind: str
) -> PreparedData[TableFile]:
    """Make the tables of ``prepare_for`` as files in ``folder``, for an artifact of ``kind``.

    Rows are kept there too on their way; in memory are some 70 bytes of each, and its reject.
    Raises ``UserError`` as ``prepare_for`` does.
    """
    ready = _ready_for(recipe, tokenizer, folder)
    return PreparedData(ready.in_files(folder, kind), ready.summary())


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
    ready = _ready(work, tokenizer, seed, environment)
    return PreparedData(ready.in_memory(), ready.summary())


def _tools(environment: EnvironmentSection | None) -> Tools:
    return () if environment is None else tools_of(environment)


def _ready_for(recipe: Recipe, tokenizer: "ChatTokenizer", folder: Path | None) -> "_Ready":
    sft_max_tokens = recipe.sft.max_tokens if recipe.sft.enabled else None
    work = Work(recipe.data, _tools(recipe.environment), sft_max_tokens, folder)
    ready = _ready(work, tokenizer, recipe.seed, recipe.environment)
    if not ready.left["validation"]:
        raise UserError(no_prompts("validation"))
    return ready


def _ready(
    work: Work, tokenizer: "ChatTokenizer", seed: int, environment: EnvironmentSection | None
) -> "_Ready":
    """Prepare every row by itself, then compare them; see ``prepare``."""
    prepared: list[Prepared] = []
    counted: Counter[str] = Counter()
    for part in parts_of(work.data, seed, environment):
        counted[part.source] += len(part)
        prepared.append(prepare_part(tokenizer, work, part))
    totals = dict(counted)
    before = sum((part.before for part in prepared), Counter[str]())
    if not before["train"] and not work.unscored and any(map(_solves, prepared)):
        return _ready(replace(work, unscored=True), tokenizer, seed, environment)
    ready = _Ready(prepared, totals, len(tokenizer), work.data)
    _check_rejects(ready.rejects, totals, work.data)
    ready.check_splits(before)
    if work.sft_max_tokens is not None and not ready.has_training_demonstrations():
        raise UserError(NO_DEMONSTRATIONS)
    return ready


def _solves(part: Prepared) -> bool:
    """Whether ``part`` has demonstrations for training, whose prompts could be asked."""
    return bool((part.demonstrations.split == TRAIN).any())


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
        self._prompts, self._demonstrations = prompts, demonstrations
        self.rejects = [rejects_table([]), *(part.rejects for part in prepared)]
        self._totals, self._vocab_size = totals, vocab_size
        first = first_for_test(prompts.draws(prompts.ordered()), data.test_fraction)
        for rows in (prompts, demonstrations):
            rows.hold_out("test", first=first)
        self._places = {
            "prompts": prompts.ordered(),
            "demonstrations": demonstrations.without(set()),
        }
        self._counts: dict[str, dict[str, int]] = {"prompts": {}, "demonstrations": {}}

        if data.decontaminate or data.deduplicate != "off":
            self._compare(data)
        left = prompts.draws(self._places["prompts"])
        last = last_for_validation(left, data.validation_fraction)
        for rows in (prompts, demonstrations):
            rows.hold_out("validation", last=last)

    def _compare(self, data: DataSection) -> None:
        """Drop the rows that repeat others, or evaluation."""
        prompts, demonstrations = self._prompts, self._demonstrations
        held = {split: prompts.asked(split) for split in ("test", "validation")}
        order = self._places["prompts"]
        others = order[prompts.split[order] != TEST]
        dropped = screen(prompts, others, pl.col(ASKED), held, data)
        self.rejects.append(prompts.rejects(others, dropped))
        kept = np.ones(len(order), dtype=np.bool_)
        kept[others[np.array(list(dropped), dtype=np.int64)]] = False
        self._places["prompts"] = order[kept[order]]
        leaked = {
            prompts.row(int(others[i])) for i, why in dropped.items() if why[0] == "contaminated"
        }
        places = demonstrations.without(leaked)
        dropped = screen(demonstrations, places, pl.col(SAID), held, data)
        self.rejects.append(demonstrations.rejects(places, dropped, "demonstration: "))
        self._places["demonstrations"] = np.delete(places, np.array(list(dropped), dtype=np.int64))

    @property
    def left(self) -> Counter[str]:
        """The number of prompts of each split."""
        return _split_counts(self._prompts, self._places["prompts"])

    def has_training_demonstrations(self) -> bool:
        return _split_counts(self._demonstrations, self._places["demonstrations"])["train"] > 0

    def check_splits(self, before: Counter[str]) -> None:
        """Raise UserError for a split without prompts; ``before``: of each, before filters."""
        left = self.left
        for split in ("train", "validation", "test"):
            if before[split] and not left[split]:
                raise UserError(
                    f"data: none of {before[split]} {split} prompts is left after preparation;"
                    " loosen data.filters, data.max_prompt_tokens or data.validation_fraction"
                )
        for split in ("train", "test"):
            if not left[split]:
                raise UserError(no_prompts(split))

    def origins(self) -> list[tuple[str, int]]:
        """Return the source of each prompt and its row there, in the order of the table."""
        return [self._prompts.row(place) for place in self._places["prompts"].tolist()]

    def in_memory(self) -> dict[str, pl.DataFrame]:
        """Return the tables."""
        return {name: pl.concat(frames) for name, frames in self._tables()}

    def in_files(self, folder: Path, kind: str) -> dict[str, TableFile]:
        """Return the tables, written into ``folder``."""
        files = {}
        for name, frames in self._tables():
            path = folder / f"{name}.parquet"
            with TableWriter(name, path, kind) as writer:
                for frame in frames:
                    writer.write(frame)
            files[name] = TableFile(path, writer.rows)
        return files

    def _tables(self) -> Iterator[tuple[str, Iterator[pl.DataFrame]]]:
        prompts = self._prompts.frames(self._places["prompts"])
        demonstrations = self._demonstrations.frames(self._places["demonstrations"])
        by = ["split", "data_source", "subset"]
        yield "prompts", counts_of(prompts, by, prompts_table([]), self._counts["prompts"])
        counts = self._counts["demonstrations"]
        yield (
            "demonstrations",
            counts_of(demonstrations, ["split"], demonstrations_table([]), counts),
        )
        rejects = pl.concat(self.rejects).sort("source", "row", maintain_order=True)
        yield "rejects", iter([rejects])

    def summary(self) -> dict[str, Any]:
        """Return ``PreparedData.summary``; the tables are made already."""
        rejects: dict[str, int] = {}
        # A row that is rejected as a prompt and as a demonstration is one row.
        rows = pl.concat(self.rejects).sort("source", "row", maintain_order=True)
        rows = rows.unique(["source", "row", "reason"], maintain_order=True)
        list(counts_of(iter([rows]), ["source", "reason"], rejects_table([]), rejects))
        lengths = {
            "prompt_tokens": self._prompts.tokens[self._places["prompts"]],
            "demonstration_tokens": self._demonstrations.tokens[self._places["demonstrations"]],
        }
        return {
            "rows_read": self._totals,
            **self._counts,
            "rejects": rejects,
            "rows_rejected": rows.select("source", "row").n_unique(),
            "vocab_size": self._vocab_size,
            **{key: figure for name, s in lengths.items() for key, figure in _lengths(name, s)},
        }


def _lengths(name: str, tokens: np.ndarray) -> Iterator[tuple[str, float]]:
    yield f"{name}_mean", round(float(tokens.mean()), 2) if len(tokens) else 0.0
    yield f"{name}_p95", int(np.quantile(tokens, 0.95, method="higher")) if len(tokens) else 0
    yield f"{name}_max", int(tokens.max(initial=0))


def _split_counts(rows: Gathered, places: np.ndarray) -> Counter[str]:
    counts = np.bincount(rows.split[places], minlength=len(SPLITS)).tolist()
    return Counter(dict(zip(SPLITS, counts, strict=True)))


def _summed(counts: Mapping[str, int], part: Callable[[str], str]) -> Counter[str]:
    summed: Counter[str] = Counter()
    for name, count in counts.items():
        summed[part(name)] += count
    return summed


def _by_split(counts: Mapping[str, int]) -> str:
    splits = _summed(counts, lambda name: name.partition("/")[0]).most_common()
    return " + ".join(f"{count:,} {split}" for split, count in splits) or "no"

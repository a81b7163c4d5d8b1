"""The rows of a Prompts table, read as they are asked for, and which of them an iteration takes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from rlcore.algorithms.seeds import stream_seed
from schemas.errors import UserError
from schemas.rl import RLSection

HELD = 32  # row groups of ``ROW_GROUP_ROWS`` rows, some 10 MB each: tables below that are read once

Read = Callable[[int, tuple[str, ...] | None], pl.DataFrame]


class PromptRows:
    """Some rows of a Prompts table, in its order, without those of other splits.

    Per row 8 bytes are held.
    """

    __slots__ = ("_ends", "_held", "_read", "_rows")

    def __init__(self, heights: Sequence[int], read: Read, rows: np.ndarray | None = None) -> None:
        """``heights``: rows of each group. ``read`` returns columns (None: all) of one of them.
        ``rows``: numbers (int64) of those that count, ascending; None: all."""
        self._ends = np.cumsum([0, *heights])
        self._read = read
        self._held = lru_cache(HELD)(lambda group: read(group, None))
        self._rows = np.arange(self._ends[-1]) if rows is None else rows

    @classmethod
    def of_frame(cls, frame: pl.DataFrame) -> "PromptRows":
        """Return the rows of a table that is in memory already."""
        return cls(
            [frame.height],
            lambda group, columns: frame if columns is None else frame.select(columns),
        )

    @classmethod
    def of_file(cls, path: Path) -> "PromptRows":
        """Return the rows of a table in a Parquet file, whose digest is already verified."""
        file = pq.ParquetFile(path)  # open to the end: a copy of a bucket's file may be removed
        heights = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]

        def read(group: int, columns: tuple[str, ...] | None) -> pl.DataFrame:
            names = None if columns is None else list(columns)
            return pl.DataFrame(pl.from_arrow(file.read_row_group(group, columns=names)))

        return cls(heights, read)

    @property
    def height(self) -> int:
        return len(self._rows)

    def of_split(self, split: str) -> "PromptRows":
        """Return the rows of one split."""
        chosen = self._rows[(self.columns("split")["split"] == split).to_numpy()]
        return PromptRows(np.diff(self._ends).tolist(), self._read, chosen)

    def take(self, places: np.ndarray) -> pl.DataFrame:
        """Return the rows at ``places`` (int64, from 0), in their order."""
        rows = self._rows[places]
        groups = np.searchsorted(self._ends, rows, side="right") - 1
        parts, order = [self._held(0).clear()], np.argsort(groups, kind="stable")
        for group in np.unique(groups):
            within = rows[order][groups[order] == group] - self._ends[group]
            parts.append(self._held(int(group))[within.tolist()])
        taken = pl.concat(parts)
        if (order[:-1] < order[1:]).all():
            return taken
        return taken[np.argsort(order, kind="stable").tolist()]

    def head(self, count: int) -> pl.DataFrame:
        """Return the first ``count`` rows, or all there are."""
        return self.take(np.arange(min(count, self.height)))

    def of_uids(self, uids: Sequence[str]) -> pl.DataFrame:
        """Return the rows of ``uids``, in the table's order; none of a uid that is not there."""
        wanted = self.columns("uid")["uid"].is_in([*uids])
        return self.take(np.flatnonzero(wanted.to_numpy()))

    def columns(self, *names: str) -> pl.DataFrame:
        """Return columns of all rows."""
        return pl.concat([*self._scan(names)])

    def with_shortest(self, count: int) -> pl.DataFrame:
        """Return the first ``count`` rows, and after them the first of the shortest prompt where it
        is none of them."""
        lengths = [part["prompt_ids"].list.len() for part in self._scan(("prompt_ids",))]
        shortest = int(pl.concat(lengths).to_numpy().argmin())
        places = np.arange(min(count, self.height))
        return self.take(places if shortest < len(places) else np.append(places, shortest))

    def _scan(self, names: tuple[str, ...]) -> Iterator[pl.DataFrame]:
        bounds = np.searchsorted(self._rows, self._ends)
        for group in range(len(self._ends) - 1):
            within = self._rows[bounds[group] : bounds[group + 1]] - self._ends[group]
            if len(within) or group == 0:
                yield self._read(group, names)[within.tolist()]


@dataclass(frozen=True, slots=True)
class PromptStream:
    """The training prompts in the order that iterations take them; ``seed``: the recipe's."""

    prompts: PromptRows
    rl: RLSection
    seed: int

    @property
    def round_size(self) -> int:
        """Prompts of one generation round; at most all there are."""
        wanted, dynamic = self.rl.rollout.prompts, self.rl.algorithm.dynamic_sampling
        if dynamic is None:
            return wanted
        return max(wanted, min(wanted * dynamic.batch_factor, self.prompts.height))

    def round(self, *, cursor: int, drawn: int) -> pl.DataFrame:
        """Return the prompts of the next round of the iteration that began at ``cursor`` and has
        used ``drawn`` places.

        A prompt of an earlier round is left out, so that none is repeated within the iteration even
        where it crosses into the next epoch; there may be fewer than ``round_size``, or none.
        """
        height, count = self.prompts.height, self.round_size
        *earlier, rows = [
            take_prompts(height, cursor=cursor + start, count=count, seed=self.seed)
            for start in range(0, drawn + 1, count)
        ]
        if earlier:
            rows = rows[~np.isin(rows, np.concatenate(earlier))]
        return self.prompts.take(rows)

    def aligned(self, cursor: int) -> int:
        """Return the first place from ``cursor`` on where a round of this stream begins.

        A fork with rounds of another size would else draw a round of two epochs, in which a prompt
        may be twice. It skips less than a round, and nothing where the rounds are alike.
        """
        size = self.round_size
        place = cursor % (self.prompts.height - self.prompts.height % size)
        return cursor - place + -(-place // size) * size


def take_prompts(num_prompts: int, *, cursor: int, count: int, seed: int) -> np.ndarray:
    """Return ``count`` row numbers (int64) at stream positions ``cursor .. cursor + count - 1``.

    Epoch ``e`` is a permutation of ``num_prompts`` drawn from (seed, e), so a position means the
    same prompt in every process: a resume neither repeats nor skips data. An epoch ends with its
    last whole iteration (drop_last), so that no iteration takes a prompt twice. Raises UserError
    when one iteration needs more prompts than there are.
    """
    if count > num_prompts:
        raise UserError(
            f"rl.rollout.prompts = {count} exceeds the {num_prompts} training prompts; lower it or"
            " add data"
        )
    positions = np.arange(cursor, cursor + count)
    epochs, offsets = np.divmod(positions, num_prompts - num_prompts % count)
    rows = np.empty(count, dtype=np.int64)
    for epoch in np.unique(epochs):
        order = np.random.default_rng(stream_seed(seed, "prompts", int(epoch))).permutation(
            num_prompts
        )
        chosen = epochs == epoch
        rows[chosen] = order[offsets[chosen]]
    return rows

"""The rows of one table from all parts of the data: compared as arrays, read part by part."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import polars as pl

from rlcore.data.prepare_part import ASKED, BESIDE, CONTENT, HASHES, SPLITS, Kept, PartColumns
from rlcore.data.rows import Reject
from rlcore.data.write import numbered_uid, numbers_of, rejects_table

TEST = SPLITS.index("test")
TRAIN = SPLITS.index("train")
Dropped = dict[int, tuple[str, str]]  # position of a row to drop -> (reason, detail)


class Gathered:
    """Rows of parts, in order; a row's place, int32, counts over all of them."""

    def __init__(self, parts: Sequence[tuple[str, Kept]]) -> None:
        """``parts``: with the source of each."""
        self._sources = [source for source, _ in parts]
        kept = [rows for _, rows in parts]
        self._columns = [rows.columns for rows in kept]
        self._ends = np.cumsum([0, *map(len, kept)], dtype=np.int32)
        self.index = _joined([rows.index for rows in kept], np.int32)
        self.split = _joined([rows.split for rows in kept], np.uint8)
        self._draw = _joined([rows.draw for rows in kept], np.uint64)
        self._moved = np.zeros(len(self.split), dtype=np.bool_)
        self._uid = _joined([rows.uid for rows in kept], np.uint64)
        self.tokens = _joined([rows.tokens for rows in kept], np.int32)

    def ordered(self) -> np.ndarray:
        """Return the places of all rows, validation first, test last."""
        return np.argsort(self.split, kind="stable").astype(np.int32)

    def draws(self, places: np.ndarray) -> np.ndarray:
        """Return the draws (uint64) of those rows at ``places`` that are of train."""
        return self._draw[places[self.split[places] == TRAIN]]

    def hold_out(self, split: str, *, first: int | None = None, last: int | None = None) -> None:
        """Move the rows of train with a draw from ``first`` on or up to ``last`` to ``split``."""
        held = np.zeros(len(self.split), dtype=np.bool_)
        if first is not None:
            held |= self._draw >= np.uint64(first)
        if last is not None:
            held |= self._draw <= np.uint64(last)
        held &= self.split == TRAIN
        self.split[held] = SPLITS.index(split)
        self._moved |= held

    def without(self, rows: set[tuple[str, int]]) -> np.ndarray:
        """Return the places of all rows but those of test and ``rows``, each a source and a number
        there, in order."""
        kept = self.split != TEST
        for source in {source for source, _ in rows}:
            numbers = [number for name, number in rows if name == source]
            for name, (start, end) in zip(self._sources, pairwise(self._ends), strict=True):
                if name == source:
                    kept[start:end] &= ~np.isin(self.index[start:end], numbers)
        return np.flatnonzero(kept).astype(np.int32)

    def asked(self, split: str) -> list[str]:
        """Return the prompts of the rows of ``split``."""
        return self.strings(np.flatnonzero(self.split == SPLITS.index(split)), pl.col(ASKED))

    def row(self, place: int) -> tuple[str, int]:
        """Return the source of a row and its number there."""
        part = int(np.searchsorted(self._ends, place, side="right")) - 1
        return self._sources[part], int(self.index[place])

    def name(self, place: int) -> str:
        """Return what a row is called in rejects."""
        source, number = self.row(place)
        return f"{source} row {number}"

    def hashes(self, places: np.ndarray) -> np.ndarray:
        """Return the hashes of the rows at ``places``, uint64 [rows, 2], in their order."""
        found = np.zeros((len(places), len(HASHES)), dtype=np.uint64)
        for columns, within, at in self._by_part(places):
            found[within] = columns(*HASHES).to_numpy()[at]
        return found

    def strings(self, places: np.ndarray, value: pl.Expr) -> list[str]:
        """Return ``value`` of the rows at ``places``, in their order."""
        found: list[str] = [""] * len(places)
        for columns, within, at in self._by_part(places):
            values = columns(*value.meta.root_names()).select(value).to_series()
            for position, text in zip(within.tolist(), values.gather(at).to_list(), strict=True):
                found[position] = text
        return found

    def _by_part(self, places: np.ndarray) -> Iterator[tuple[PartColumns, np.ndarray, np.ndarray]]:
        """Yield of each part that has rows at ``places``: its columns, the positions of those rows
        in ``places`` and in the part."""
        order = np.argsort(places, kind="stable")
        bounds = np.searchsorted(places[order], self._ends)
        for columns, start, (first, last) in zip(
            self._columns, self._ends[:-1], pairwise(bounds), strict=True
        ):
            if first < last:
                within = order[first:last]
                yield columns, within, places[within] - start

    def rejects(self, places: np.ndarray, dropped: Dropped, prefix: str = "") -> pl.DataFrame:
        """Return the Rejects rows of what is ``dropped``; its positions count in ``places``."""
        at = places[np.array(list(dropped), dtype=np.int64)]
        contents = self.strings(at, pl.col(CONTENT)) if len(at) else []
        return rejects_table(
            [
                Reject(*self.row(int(place)), reason, f"{prefix}{detail}", content)
                for place, (reason, detail), content in zip(
                    at, dropped.values(), contents, strict=True
                )
            ]
        )

    def frames(self, places: np.ndarray) -> Iterator[pl.DataFrame]:
        """Yield the table of the rows at ``places``, which ascend within each split and have their
        splits one after the other, or ascend throughout. A part is read once per split."""
        numbers = numbers_of(self._uid[places])
        breaks = np.flatnonzero(np.diff(places) < 0) + 1
        for first, last in pairwise([0, *breaks.tolist(), len(places)]):
            run = places[first:last]
            bounds = np.searchsorted(run, self._ends)
            for columns, start, (a, b) in zip(
                self._columns, self._ends[:-1], pairwise(bounds), strict=True
            ):
                if a < b:
                    frame = columns().drop(BESIDE, strict=False)
                    frame = frame[(run[a:b] - start).tolist()]
                    yield self._final(frame, run[a:b], numbers[first + a : first + b])

    def _final(self, frame: pl.DataFrame, places: np.ndarray, numbers: np.ndarray) -> pl.DataFrame:
        held_out = self._moved[places]
        if held_out.any():
            moved = pl.lit(pl.Series(held_out))
            now = pl.lit(pl.Series([SPLITS[split] for split in self.split[places]]))
            names = [name for name in ("split", "subset") if name in frame.columns]
            frame = frame.with_columns(
                pl.when(moved).then(now).otherwise(pl.col(name)).alias(name) for name in names
            )
        return frame.with_columns(numbered_uid(numbers)) if (numbers > 1).any() else frame


def counts_of(
    frames: Iterator[pl.DataFrame], columns: list[str], empty: pl.DataFrame, into: dict[str, int]
) -> Iterator[pl.DataFrame]:
    """Yield ``empty``, then ``frames``; count their rows into {values of ``columns`` joined by "/":
    rows}, in order of first appearance."""
    yield empty
    for frame in frames:
        groups = frame.group_by(columns, maintain_order=True).len()
        for row in groups.iter_rows():
            name = "/".join(row[:-1])
            into[name] = into.get(name, 0) + row[-1]
        yield frame


def _joined(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=dtype), *arrays])

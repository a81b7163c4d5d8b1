"""The rows of one table from all parts of the data, read part by part; and which of them repeat one
another or what evaluation holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from rlcore.data.dedup import contaminated, exact_duplicates, near_duplicates
from rlcore.data.prepare_part import ASKED, BESIDE, CONTENT, HASHES, SPLIT, Kept
from rlcore.data.rows import Reject
from rlcore.data.write import OCCURRENCE, numbered_uid, rejects_table
from schemas.data import DataSection

Dropped = dict[int, tuple[str, str]]  # position of a row to drop -> (reason, detail)
Held = dict[str, list[str]]  # evaluation split -> its prompts; training may hold none of them
_READ_ROWS = 8192  # texts in memory at once


class Gathered:
    """Rows of parts. ``keys``: of each in the order of the table those of ``Kept``, its ``source``,
    its ``part`` and its place there, ``at``. What leaves the table leaves ``keys`` alone."""

    def __init__(self, parts: Sequence[tuple[str, Kept]]) -> None:
        """``parts``: with the source of each."""
        self._columns = [kept.columns for _, kept in parts]
        source = pl.Enum(list(dict.fromkeys(source for source, _ in parts)))
        self.keys = pl.concat(
            kept.keys.with_row_index("at").with_columns(
                source=pl.lit(name).cast(source), part=pl.lit(number, pl.UInt32)
            )
            for number, (name, kept) in enumerate(parts)
        )

    def draws(self) -> pl.Series:
        """Return the draws (uint64) of the rows of train."""
        return self.keys.filter(pl.col("split") == "train")["draw"]

    def hold_out(self, split: str, drawn: pl.Expr) -> None:
        """Move the rows of train whose draw is as ``drawn`` says to ``split``."""
        held = (pl.col("split") == "train") & drawn
        moved = pl.when(held).then(pl.lit(split, SPLIT)).otherwise("split")
        self.keys = self.keys.with_columns(split=moved)

    def leave_out(self, keys: pl.DataFrame, *on: str) -> None:
        """Drop the rows that are equal ``on`` those names to a row of ``keys``."""
        self.keys = self.keys.join(keys, on=on, how="anti", maintain_order="left")

    def asked(self, split: str) -> list[str]:
        """Return the prompts of the rows of ``split``."""
        return self.read(self.keys.filter(pl.col("split") == split), ASKED)[ASKED].to_list()

    def read(self, keys: pl.DataFrame, *names: str) -> pl.DataFrame:
        """Return the columns ``names`` of the rows of ``keys``, in their order."""
        if keys.is_empty():
            return self._columns[0].select(names).head(0).collect()
        parts = keys.select("part", "at").with_row_index("order").partition_by("part")
        found = [self._part(rows, pl.col(names)).with_columns(rows["order"]) for rows in parts]
        return pl.concat(found).sort("order").drop("order")

    def _part(self, keys: pl.DataFrame, columns: pl.Expr) -> pl.DataFrame:
        """Return ``columns`` of the rows of ``keys``, which are of one part."""
        return self._columns[keys["part"][0]].select(columns).collect()[keys["at"]]

    def rejects(self, keys: pl.DataFrame, dropped: Dropped, prefix: str = "") -> pl.DataFrame:
        """Return the Rejects rows of what is ``dropped``; its positions count in ``keys``."""
        lost = keys[pl.Series(list(dropped), dtype=pl.UInt32)]
        contents, names = self.read(lost, CONTENT)[CONTENT], lost.select("source", "row")
        return rejects_table(
            [
                Reject(source, row, reason, f"{prefix}{detail}", content)
                for (source, row), (reason, detail), content in zip(
                    names.iter_rows(), dropped.values(), contents, strict=True
                )
            ]
        )

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield the table in pieces, which are of one part each."""
        keys = self.keys.with_columns(number=OCCURRENCE, piece=pl.col("part").rle_id())
        for rows in keys.partition_by("piece", maintain_order=True):
            frame = self._part(rows, pl.exclude(BESIDE))
            split = pl.lit(rows["split"].cast(pl.String))
            now = pl.when(pl.col("split") != split).then(split)
            names = [name for name in ("split", "subset") if name in frame.columns]
            yield frame.with_columns(
                numbered_uid(pl.lit(rows["number"])),
                *(now.otherwise(name).alias(name) for name in names),
            )


@dataclass(frozen=True, slots=True)
class _Texts:
    """The column ``name`` of the rows of ``keys``, read again at each iteration; few are held."""

    rows: Gathered
    name: str
    keys: pl.DataFrame

    def __iter__(self) -> Iterator[str]:
        for keys in self.keys.iter_slices(_READ_ROWS):
            yield from self.rows.read(keys, self.name)[self.name]


def screen(rows: Gathered, keys: pl.DataFrame, text: str, held: Held, data: DataSection) -> Dropped:
    """Return which of the rows of ``keys`` repeat an earlier one, or what evaluation holds, and
    why. ``text``: the column that makes two rows equal.

    Prompts come with those of validation first: of two equal rows theirs is kept. Test rows do not
    come at all, since published figures refer to all of them. Several solutions of one question are
    no duplicates: of demonstrations whole conversations are compared.
    """
    reasons: Dropped = {}
    names = keys.select("source", "row")

    def name(place: int) -> str:
        return "{} row {}".format(*names.row(place))

    if data.deduplicate != "off":
        for i, kept in exact_duplicates(rows.read(keys, *HASHES)).items():
            reasons[i] = ("duplicate", f"equals {name(kept)}")
    if data.deduplicate == "near":
        left = np.array([i for i in range(keys.height) if i not in reasons], dtype=np.int64)
        texts = _Texts(rows, text, keys[left])
        for i, kept in near_duplicates(texts, data.near_duplicate_jaccard).items():
            reasons[int(left[i])] = (
                "near_duplicate",
                f"shares {data.near_duplicate_jaccard:g} or more of its word 5-grams with"
                f" {name(int(left[kept]))}",
            )
    if data.decontaminate:
        train = np.flatnonzero(keys["split"] == "train")
        for split, prompts in held.items():
            at = np.arange(keys.height) if split == "test" else train
            for i, other in contaminated(_Texts(rows, ASKED, keys[at]), prompts).items():
                detail = f"shares its words with the {split} prompt: {prompts[other][:80]}"
                reasons.setdefault(int(at[i]), ("contaminated", detail))
    return dict(sorted(reasons.items()))

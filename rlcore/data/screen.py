"""Training rows that repeat one another or the test split."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from rlcore.data.combine import ASKED, TRAIN, Dropped, Gathered
from rlcore.data.dedup import contaminated, exact_duplicates, near_duplicates
from schemas.data import DataSection

Held = dict[str, list[str]]  # evaluation split -> its prompts; training may hold none of them

_READ_ROWS = 8192  # texts in memory at once


@dataclass(frozen=True, slots=True)
class _Texts:
    """``value`` of the rows at ``places``, read again each time it is iterated; few are held."""

    rows: Gathered
    value: pl.Expr
    places: np.ndarray

    def __iter__(self) -> Iterator[str]:
        for part in np.array_split(self.places, len(self.places) // _READ_ROWS + 1):
            yield from self.rows.strings(part, self.value)


def screen(
    rows: Gathered, places: np.ndarray, text: pl.Expr, held: Held, data: DataSection
) -> Dropped:
    """Return which of the rows at ``places`` repeat an earlier one, or what evaluation holds, and
    why. ``text``: of the columns, what makes two rows equal.

    Prompts come with those of validation first: of two equal rows theirs is kept. Test rows do not
    come at all, since published figures refer to all of them. Several solutions of one question are
    no duplicates: of demonstrations whole conversations are compared.
    """
    reasons: Dropped = {}
    if data.deduplicate != "off":
        for i, kept in exact_duplicates(rows.hashes(places)).items():
            reasons[i] = ("duplicate", f"equals {rows.name(int(places[kept]))}")
    if data.deduplicate == "near":
        left = np.array([i for i in range(len(places)) if i not in reasons], dtype=np.int64)
        texts = _Texts(rows, text, places[left])
        for i, kept in near_duplicates(texts, data.near_duplicate_jaccard).items():
            reasons[int(left[i])] = (
                "near_duplicate",
                f"shares {data.near_duplicate_jaccard:g} or more of its word 5-grams with"
                f" {rows.name(int(places[left[kept]]))}",
            )
    if data.decontaminate:
        train = np.flatnonzero(rows.split[places] == TRAIN)
        for split, prompts in held.items():
            at = np.arange(len(places)) if split == "test" else train
            asked = _Texts(rows, pl.col(ASKED), places[at])
            for i, other in contaminated(asked, prompts).items():
                detail = f"shares its words with the {split} prompt: {prompts[other][:80]}"
                reasons.setdefault(int(at[i]), ("contaminated", detail))
    return dict(sorted(reasons.items()))

"""Training rows that repeat one another or the test split, and how much may be rejected."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from rlcore.data.combine import ASKED, TRAIN, Dropped, Gathered
from rlcore.data.dedup import contaminated, exact_duplicates, near_duplicates
from rlcore.data.rows import Reject
from schemas.data import DataSection
from schemas.errors import UserError

Held = dict[str, list[str]]  # evaluation split -> its prompts; training may hold none of them

_READ_ROWS = 8192  # texts in memory at once

REMEDIES = {
    "over_length": "raise data.max_prompt_tokens or set data.over_length to a truncation",
    "over_length_demonstration": "raise sft.max_tokens",
    "filter": "loosen data.filters",
    "duplicate": "set data.deduplicate to 'off'",
    "near_duplicate": "raise data.near_duplicate_jaccard or set data.deduplicate to 'exact'",
    "contaminated": "remove the rows that the test split holds, or set data.decontaminate to false",
    "null_ground_truth": "fill reward_model.ground_truth",
    "template_rewrites_history": "set model.chat_template",
    "template_opens_otherwise": "set model.chat_template",
    "not_shown": "set model.chat_template to one that shows it, or remove it from the rows",
    "untrained_turn": "remove those turns",
    "template": "set model.chat_template or fix the rows",
}


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


def check_rejects(rejects: Sequence[Reject], totals: dict[str, int], data: DataSection) -> None:
    """Raise ``UserError`` when a source loses more than ``data.max_reject_fraction`` of its rows.

    The error has the number, the most frequent reason with an example, and the remedy.
    """
    for source, total in totals.items():
        lost = [reject for reject in rejects if reject.source == source]
        count = len({reject.row for reject in lost})
        if not count or count <= data.max_reject_fraction * total:
            continue
        # A row may be rejected as a prompt and as a demonstration: it counts once.
        by_row = dict.fromkeys((reject.row, reject.reason) for reject in lost)
        reason, times = Counter(reason for _, reason in by_row).most_common(1)[0]
        example = next(reject for reject in lost if reject.reason == reason)
        raise UserError(
            f"{source}: {count} of {total} rows rejected, over data.max_reject_fraction ="
            f" {data.max_reject_fraction:g}; {times} for '{reason}', as row {example.row}:"
            f" {example.detail}; {REMEDIES.get(reason, 'fix the rows')}, or raise"
            " data.max_reject_fraction"
        )

"""Training rows that repeat one another or the test split, and how much may be rejected."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlcore.data.dedup import contaminated, exact_duplicates, near_duplicates
from rlcore.data.rows import Reject
from schemas.data import DataSection
from schemas.errors import UserError

Held = dict[str, list[str]]  # evaluation split -> its prompts; training may hold none of them
Dropped = dict[int, tuple[str, str]]  # position of a row to drop -> (reason, detail)

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
class ScreenedRows:
    """Rows of one table that are compared with one another, of the training and validation splits.

    ``name``: position -> "<source> row <number>". ``is_train`` [rows]. ``hashes``: reads
    those of ``texts``, as in ``exact_duplicates``. ``texts`` and ``asked``: positions -> what
    repeats, and the prompts.
    """

    name: Callable[[int], str]
    is_train: np.ndarray
    hashes: Callable[[], np.ndarray]
    texts: Callable[[np.ndarray], list[str]]
    asked: Callable[[np.ndarray], list[str]]


@dataclass(frozen=True, slots=True)
class _Read:
    """The texts at ``positions``, read again each time that they are iterated; few are held."""

    texts: Callable[[np.ndarray], list[str]]
    positions: np.ndarray

    def __iter__(self) -> Iterator[str]:
        for part in np.array_split(self.positions, len(self.positions) // _READ_ROWS + 1):
            yield from self.texts(part)


def screen(rows: ScreenedRows, held: Held, data: DataSection) -> Dropped:
    """Return which rows repeat an earlier one, or what evaluation holds, and why.

    Prompts come with those of validation first: of two equal rows theirs is kept. Test rows do not
    come at all, since published figures refer to all of them. Several solutions of one question are
    no duplicates: of demonstrations whole conversations are compared.
    """
    reasons: Dropped = {}
    if data.deduplicate != "off":
        for i, kept in exact_duplicates(rows.hashes()).items():
            reasons[i] = ("duplicate", f"equals {rows.name(kept)}")
    if data.deduplicate == "near":
        left = np.array([i for i in range(len(rows.is_train)) if i not in reasons], dtype=np.int64)
        similar = near_duplicates(_Read(rows.texts, left), data.near_duplicate_jaccard)
        for i, kept in ((int(left[i]), int(left[k])) for i, k in similar.items()):
            reasons[i] = (
                "near_duplicate",
                f"shares {data.near_duplicate_jaccard:g} or more of its word 5-grams with"
                f" {rows.name(kept)}",
            )
    if data.decontaminate:
        for split, texts in held.items():
            at = np.arange(len(rows.is_train)) if split == "test" else np.flatnonzero(rows.is_train)
            for i, other in contaminated(_Read(rows.asked, at), texts).items():
                detail = f"shares its words with the {split} prompt: {texts[other][:80]}"
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

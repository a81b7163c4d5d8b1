"""Training rows that repeat one another or the test split, and how much may be rejected."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from rlcore.data.dedup import contaminated, exact_duplicates, near_duplicates
from rlcore.data.rows import Reject, Row
from schemas.data import DataSection
from schemas.errors import UserError

Tokens = TypeVar("Tokens")  # anything that accompanies a row
Held = dict[str, list[str]]  # evaluation split -> its prompts; training may hold none of them

REMEDIES = {
    "over_length": "raise data.max_prompt_tokens or set data.over_length to a truncation",
    "over_length_demonstration": "raise sft.max_tokens",
    "filter": "loosen data.filters",
    "duplicate": "set data.deduplicate to 'off'",
    "near_duplicate": "raise data.near_duplicate_jaccard or set data.deduplicate to 'exact'",
    "contaminated": "remove the rows that the test split holds, or set data.decontaminate to false",
    "null_ground_truth": "fill reward_model.ground_truth",
    "template_rewrites_history": "set model.chat_template",
    "template": "set model.chat_template or fix the rows",
}


def screen_prompts(
    prompts: list[tuple[Row, Tokens]], held: Held, data: DataSection
) -> tuple[list[tuple[Row, Tokens]], list[Reject]]:
    """Return the prompts without duplicates and contamination, validation first, test last.

    Test rows are never removed, since published figures refer to all of them. Of two equal rows the
    one of the validation split is kept.
    """
    order = {"validation": 0, "train": 1, "test": 2}
    ordered = sorted(prompts, key=lambda pair: order[pair[0].split])
    others = [pair for pair in ordered if pair[0].split != "test"]
    rows = [row for row, _ in others]
    reasons = _screen([row.prompt_text for row in rows], rows, held, data)
    rejects = [rows[i].reject(*reason) for i, reason in sorted(reasons.items())]
    return [pair for i, pair in enumerate(others) if i not in reasons] + ordered[len(others) :], (
        rejects
    )


def screen_demonstrations(
    demonstrations: list[tuple[Row, Tokens]], held: Held, data: DataSection
) -> tuple[list[tuple[Row, Tokens]], list[Reject]]:
    """Return the demonstrations without duplicates and without evaluation questions.

    Several solutions of one question are no duplicates: whole conversations are compared.
    """
    rows = [row for row, _ in demonstrations]
    texts = ["\n".join(message["content"] for message in row.messages) for row in rows]
    reasons = _screen(texts, rows, held, data)
    rejects = [
        rows[i].reject(reason, f"demonstration: {detail}")
        for i, (reason, detail) in sorted(reasons.items())
    ]
    return [pair for i, pair in enumerate(demonstrations) if i not in reasons], rejects


def check_rejects(rejects: Sequence[Reject], totals: dict[str, int], data: DataSection) -> None:
    """Raise ``UserError`` when a source loses more than ``data.max_reject_fraction`` of its rows.

    The error has the number, the most frequent reason with an example, and the remedy.
    """
    for source, total in totals.items():
        lost = [reject for reject in rejects if reject.source == source]
        count = len({reject.row for reject in lost})
        if not count or count <= data.max_reject_fraction * total:
            continue
        reason, times = Counter(reject.reason for reject in lost).most_common(1)[0]
        example = next(reject for reject in lost if reject.reason == reason)
        raise UserError(
            f"{source}: {count} of {total} rows rejected, over data.max_reject_fraction ="
            f" {data.max_reject_fraction:g}; {times} for '{reason}', as row {example.row}:"
            f" {example.detail}; {REMEDIES.get(reason, 'fix the rows')}, or raise"
            " data.max_reject_fraction"
        )


def _screen(
    texts: Sequence[str], rows: Sequence[Row], held: Held, data: DataSection
) -> dict[int, tuple[str, str]]:
    """Return {position: (reason, detail)} of the rows to drop."""
    reasons: dict[int, tuple[str, str]] = {}
    if data.deduplicate != "off":
        for i, kept in exact_duplicates(texts).items():
            reasons[i] = ("duplicate", f"equals {rows[kept].source} row {rows[kept].index}")
    if data.deduplicate == "near":
        left = [i for i in range(len(rows)) if i not in reasons]
        similar = near_duplicates([texts[i] for i in left], data.near_duplicate_jaccard)
        for i, kept in ((left[i], rows[left[k]]) for i, k in similar.items()):
            reasons[i] = (
                "near_duplicate",
                f"shares {data.near_duplicate_jaccard:g} or more of its word 5-grams with"
                f" {kept.source} row {kept.index}",
            )
    if data.decontaminate:
        for split, held_texts in held.items():
            at = [i for i, row in enumerate(rows) if split != "validation" or row.split == "train"]
            shared = contaminated([rows[i].prompt_text for i in at], held_texts)
            for i, other in shared.items():
                detail = f"shares its words with the {split} prompt: {held_texts[other][:80]}"
                reasons.setdefault(at[i], ("contaminated", detail))
    return reasons

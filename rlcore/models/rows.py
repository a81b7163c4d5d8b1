"""Which sequences share a row, how long rows are, and which rows share a micro-batch. numpy only.

All of it is a function of lengths and limits, so that a run that is repeated cuts the same passes.
"""

import numpy as np

from schemas.errors import UserError

ROW_MULTIPLES = (1, 2, 3)  # of the longest sequence: what a row may hold where nothing is set
# Tokens of a row at which attention, with its mask of the whole row, costs as much as the rest of
# the model: fitted to rows of 37 to 9,472 tokens on CPU, 0.46 M parameters. Less in larger models.
ATTENTION_TOKENS = 750

Rows = tuple[list[np.ndarray], np.ndarray]  # per row its sequences, in order, and its tokens
Part = tuple[list[np.ndarray], int]  # a micro-batch: its rows, and their padded tokens


def plan_rows(
    lengths: np.ndarray, row_tokens: int, *, one_per_row: bool = False
) -> list[np.ndarray]:
    """First-fit-decreasing: return, per row, the indices of the sequences it holds, in order.

    Ties keep the given order, so that the plan depends on ``lengths`` alone. ``one_per_row``: one
    sequence per row, longest first. Raises ``UserError`` when a sequence is longer than a row.
    """
    if len(lengths) and int(lengths.max()) > row_tokens:
        longest = int(lengths.argmax())
        raise UserError(
            f"sequence {longest} has {int(lengths[longest])} tokens and a packed row holds "
            f"{row_tokens}; raise hardware.learner.row_tokens or micro_batch_tokens, or shorten "
            "prompts and responses"
        )
    order = np.argsort(-lengths, kind="stable")
    if one_per_row:
        return list(order[:, None])
    free = np.zeros(len(lengths), dtype=np.int64)
    rows: list[list[int]] = []
    for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        row = int(np.argmax(free[: len(rows)] >= length)) if rows else 0
        if not rows or free[row] < length:
            row = len(rows)
            rows.append([])
            free[row] = row_tokens
        rows[row].append(index)
        free[row] -= length
    return [np.array(row, dtype=np.int64) for row in rows]


def padded_tokens(
    lengths: np.ndarray, *, micro_batch_tokens: int, row_tokens: int | None, one_per_row: bool
) -> int:
    """Return how many tokens, padding included, the passes over ``lengths`` [sequences] compute.

    Arguments as ``pack``'s. Raises ``UserError`` when a sequence does not fit a row.
    """
    if not len(lengths):
        return 0
    members = np.arange(len(lengths))
    parts = parts_of(lengths, members, micro_batch_tokens, row_tokens, one_per_row)
    return sum(len(rows) * width for rows, width in parts)


def parts_of(
    lengths: np.ndarray,
    members: np.ndarray,
    micro_batch_tokens: int,
    row_tokens: int | None,
    one_per_row: bool,
) -> list[Part]:
    """Return (rows, width) of each micro-batch, from rows of ``row_tokens`` or, with None, of the
    multiple of the longest sequence that costs least: the shortest of equals."""

    def filled(width: int) -> list[Part]:
        return _cut(*filled_rows(lengths, members, width, one_per_row), micro_batch_tokens)

    if row_tokens is not None:
        return filled(row_tokens)
    longest = int(lengths[members].max())
    if one_per_row:
        return filled(longest)
    widths = [longest * n for n in ROW_MULTIPLES if n == 1 or longest * n <= micro_batch_tokens]
    return min((filled(width) for width in widths), key=_cost)


def _cost(parts: list[Part]) -> int:
    """Return what the passes over ``parts`` cost, in a unit of its own."""
    return sum(len(rows) * width * (ATTENTION_TOKENS + width) for rows, width in parts)


def _cut(rows: list[np.ndarray], used: np.ndarray, micro_batch_tokens: int) -> list[Part]:
    """Return (rows, width) of each micro-batch, from rows in descending order of ``used``."""
    parts, first = [], 0
    while first < len(rows):
        width = int(used[first])
        count = max(1, micro_batch_tokens // width)
        parts.append((rows[first : first + count], width))
        first += count
    return parts


def filled_rows(
    lengths: np.ndarray, members: np.ndarray, row_tokens: int, one_per_row: bool
) -> Rows:
    """Return rows of sequence indices and the tokens in each, fullest first.

    FFD fills rows unevenly; after sorting, rows of similar length share a micro-batch, which is
    trimmed to its longest row.
    """
    plan = plan_rows(lengths[members], row_tokens, one_per_row=one_per_row)
    rows = [members[row] for row in plan]
    used = np.array([lengths[row].sum() for row in rows])
    order = np.argsort(-used, kind="stable")
    return [rows[i] for i in order.tolist()], used[order]

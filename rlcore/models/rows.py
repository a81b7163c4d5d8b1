"""Which sequences share a row, how long rows are, and which rows share a micro-batch. numpy only.

All of it is a function of lengths and limits, so that a run that is repeated cuts the same passes.
"""

import itertools
from collections.abc import Callable

import numpy as np

from rlcore.models.gpu.blocks import Part, part_of_blocks, part_tokens, parts_of_blocks
from rlcore.models.trees import Prompts, Tree, documents_of, tree_lengths, trees_of
from schemas.errors import UserError

ROW_MULTIPLES = (1, 2, 3)  # of the longest sequence: what a row may hold where nothing is set
SHARING_MULTIPLES = (*ROW_MULTIPLES, 4, 6, 8)  # the same where a row holds many answers to a prompt
# Tokens of a row at which attention, with its mask of the whole row, costs as much as the rest of
# the model: fitted to rows of 37 to 9,472 tokens on CPU, 0.46 M parameters. Less in larger models.
ATTENTION_TOKENS = 750

Rows = tuple[list[list[Tree]], np.ndarray]  # per row its trees, in order, and its tokens


def plan_rows(
    lengths: np.ndarray, row_tokens: int, *, one_per_row: bool = False
) -> list[np.ndarray]:
    """First-fit-decreasing: return, per row, the indices of what it holds, in order.

    ``lengths``: of sequences or trees, each at most ``row_tokens``. Ties keep the given order, so
    that the plan depends on ``lengths`` alone. ``one_per_row``: one per row, longest first.
    """
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
    lengths: np.ndarray,
    *,
    micro_batch_tokens: int,
    row_tokens: int | None,
    one_per_row: bool,
    blocks: bool = False,
) -> int:
    """Return how many tokens, padding included, the passes over ``lengths`` [sequences] compute.

    Arguments as ``pack``'s. Raises ``UserError`` when a sequence does not fit a row.
    """
    if not len(lengths):
        return 0
    members = np.arange(len(lengths))
    parts = parts_of(
        lengths,
        members,
        micro_batch_tokens,
        row_tokens=row_tokens,
        one_per_row=one_per_row,
        blocks=blocks,
    )
    return sum(map(part_tokens, parts))


def parts_of(
    lengths: np.ndarray,
    members: np.ndarray,
    micro_batch_tokens: int,
    *,
    row_tokens: int | None,
    one_per_row: bool,
    blocks: bool = False,
    prompts: Prompts | None = None,
) -> list[Part]:
    """Return the micro-batches, each one block, from rows of ``row_tokens`` or, with None, of the
    multiple of the longest sequence that costs least: the shortest of equals.

    ``blocks``: with None, rows of several lengths. ``prompts``: of all sequences, where answers to
    one may share it.
    """

    def filled(width: int) -> list[Part]:
        rows, used = filled_rows(lengths, members, width, one_per_row, prompts)
        return _cut(rows, used, micro_batch_tokens, lengths)

    if row_tokens is not None:
        return filled(row_tokens)
    if blocks and not one_per_row:
        return parts_of_blocks(lengths, members, micro_batch_tokens, prompts)
    widths = _widths(int(lengths[members].max()), micro_batch_tokens, one_per_row, prompts)
    return min((filled(width) for width in widths), key=_cost)


def one_part(
    lengths: np.ndarray,
    members: np.ndarray,
    micro_batch_tokens: int,
    *,
    row_tokens: int | None,
    one_per_row: bool,
    blocks: bool = False,
    prompts: Prompts | None = None,
) -> Part:
    """Return rows that hold all ``members`` in one micro-batch; arguments as ``parts_of``'s. It may
    exceed ``micro_batch_tokens`` where no rows fit."""

    def filled(width: int) -> Part:
        rows, used = filled_rows(lengths, members, width, one_per_row, prompts)
        (part,) = _cut(rows, used, len(rows) * int(used[0]), lengths)
        return part

    if row_tokens is not None:
        return filled(row_tokens)
    if blocks and not one_per_row:
        return part_of_blocks(lengths, members, micro_batch_tokens, prompts)
    longest = int(lengths[members].max())
    if prompts is None:
        return filled(longest)
    parts = [filled(w) for w in _widths(longest, micro_batch_tokens, one_per_row, prompts)]
    fitting = [part for part in parts if part_tokens(part) <= micro_batch_tokens]
    return min(fitting or parts, key=lambda part: _cost([part]))


def parts_of_groups(
    lengths: np.ndarray,
    kept: np.ndarray,
    groups: np.ndarray,
    micro_batch_tokens: int,
    fill: Callable[[np.ndarray], Part],
) -> list[Part]:
    """Return the micro-batches, each filled with whole groups until the next does not fit.

    ``groups`` [sequences]; ``fill``: ``one_part`` of the sequences at the given indices. Raises
    ``UserError`` where a group alone exceeds ``micro_batch_tokens``.
    """
    order = kept[np.argsort(groups[kept], kind="stable")]
    names = groups[order]
    begins = np.flatnonzero(np.append(True, names[1:] != names[:-1]))
    ends = np.append(begins[1:], len(order))
    tokens = np.cumsum(lengths[order])
    parts: list[Part] = []
    first = 0
    while first < len(begins):
        start = int(begins[first])

        def fitting(count: int, first: int = first, start: int = start) -> Part | None:
            part = fill(order[start : ends[first + count - 1]])
            if part_tokens(part) <= micro_batch_tokens:
                return part
            if count > 1:
                return None
            raise UserError(
                f"a prompt's {ends[first] - start} responses need {part_tokens(part)} tokens "
                f"of one micro-batch and it holds {micro_batch_tokens}; raise "
                "hardware.learner.micro_batch_tokens or compare fewer responses"
            )

        before = int(tokens[start] - lengths[order[start]])
        guess = int(np.searchsorted(tokens[ends[first:] - 1] - before, micro_batch_tokens, "right"))
        count, part = _most(fitting, guess, len(begins) - first)
        parts.append(part)
        first += count
    return parts


def _most(fitting: Callable[[int], Part | None], guess: int, limit: int) -> tuple[int, Part]:
    """Return a count of at most ``limit`` that fits where one more does not, and its part; the
    search begins at ``guess``. ``fitting(1)`` fits or raises."""
    count, step, too_many = max(1, guess), 1, limit + 1
    held = 0, Part()
    while held[0] + 1 < too_many:
        part = fitting(count)
        if part is None:
            too_many = count
            count = (held[0] + too_many) // 2
        else:
            held = count, part
            upper = (count + too_many) // 2 if too_many <= limit else limit
            count, step = min(count + step, upper), 2 * step
    return held


def _widths(
    longest: int, micro_batch_tokens: int, one_per_row: bool, prompts: Prompts | None
) -> list[int]:
    """Return the tokens that a row may have."""
    if one_per_row:
        return [longest]
    multiples = ROW_MULTIPLES if prompts is None else SHARING_MULTIPLES
    return [longest * n for n in multiples if n == 1 or longest * n <= micro_batch_tokens]


def _cost(parts: list[Part]) -> int:
    """Return what the passes over ``parts`` cost, in a unit of its own."""
    return sum(
        len(rows) * width * (ATTENTION_TOKENS + width) for part in parts for rows, width in part
    )


def _cut(
    rows: list[list[Tree]], used: np.ndarray, micro_batch_tokens: int, lengths: np.ndarray
) -> list[Part]:
    """Return each micro-batch, one block, from rows in descending order of ``used``."""
    parts: list[Part] = []
    first = 0
    while first < len(rows):
        width = int(used[first])
        count = max(1, micro_batch_tokens // width)
        number = itertools.count()
        block = [
            [each for tree in row for each in documents_of(tree, next(number), lengths)]
            for row in rows[first : first + count]
        ]
        parts.append([(block, width)])
        first += count
    return parts


def filled_rows(
    lengths: np.ndarray,
    members: np.ndarray,
    row_tokens: int,
    one_per_row: bool,
    prompts: Prompts | None = None,
) -> Rows:
    """Return rows of trees and the tokens in each, fullest first.

    FFD fills rows unevenly; after sorting, rows of similar length share a micro-batch, which is
    trimmed to its longest row. Raises ``UserError`` when a sequence is longer than a row.
    """
    longest = members[int(np.argmax(lengths[members]))]
    if lengths[longest] > row_tokens:
        raise UserError(
            f"sequence {longest} has {lengths[longest]} tokens and a packed row holds {row_tokens};"
            " raise hardware.learner.row_tokens or micro_batch_tokens, or shorten prompts and"
            " responses"
        )
    trees = trees_of(lengths, members, row_tokens, None if one_per_row else prompts)
    sizes = tree_lengths(trees, lengths)
    plan = plan_rows(sizes, row_tokens, one_per_row=one_per_row)
    rows = [[trees[at] for at in row.tolist()] for row in plan]
    used = np.array([sizes[row].sum() for row in plan])
    order = np.argsort(-used, kind="stable")
    return [rows[i] for i in order.tolist()], used[order]

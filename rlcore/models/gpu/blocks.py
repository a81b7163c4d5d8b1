"""Which sequences share a row where a pass may hold rows of several lengths. numpy only.

A block is rows of one length. Attention costs by the length of the row, so the longest sequences
lie alone, the next in rows of the longest of them, whose gaps the shortest fill, and the rest in
rows of equal load. A function of lengths and limits alone.
"""

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlcore.models.trees import (
    Document,
    PromptIndex,
    Tree,
    documents_of,
    tree_lengths,
    trees_of,
    whole,
)

BLOCKS = "sdpa_blocks"  # the attention that computes them (rlcore.models.gpu.block_attention)
Row = list[Document]  # in order
Block = tuple[list[Row], int]  # rows of so many padded tokens
Part = list[Block]  # a micro-batch
Indices = list[tuple[list[np.ndarray], int]]  # blocks whose rows are indices of sequences


@dataclass(frozen=True, slots=True)
class Shape:
    """A block of a pass: ``rows`` of ``width`` tokens. ``several``: whether a row holds more than
    one sequence. Where rows continue prompts that lie elsewhere in the pass, ``prompts`` [rows]
    int64 are the places of their first tokens and ``asked`` [rows] int64 how many they have."""

    rows: int
    width: int
    several: bool
    prompts: np.ndarray | None = None
    asked: np.ndarray | None = None


# Tokens of a row at which attention costs as much as the rest of the model, and tokens of a model
# that cost as much as one more block: fitted on CPU, 0.43 M parameters. Less in larger models.
ATTENTION_TOKENS = 1000
BLOCK_TOKENS = 7
# The same for a block of branches, whose keys are put together, and for each branch in it.
BRANCHES_TOKENS = 40
BRANCH_TOKENS = 4
CUTS = 48  # places at which a cut is considered
MULTIPLES = (1, 2, 3, 4, 6)  # of their longest: what rows of the rest may hold
USUAL = 2  # of them


def part_tokens(part: Part) -> int:
    """Return the tokens of a micro-batch, padding included."""
    return sum(len(rows) * width for rows, width in part)


def parts_of_blocks(
    lengths: np.ndarray,
    members: np.ndarray,
    micro_batch_tokens: int,
    prompts: PromptIndex | None = None,
) -> list[Part]:
    """Return the blocks of each micro-batch of at most ``micro_batch_tokens`` padded tokens.

    ``lengths`` [sequences]; ``members``: indices of those to lay out, none longer than the limit.
    ``prompts``: of all sequences, where answers to one share it if that pays.
    """
    trees = _trees_that_pay(lengths, members, micro_batch_tokens, prompts)
    if any(tree.shared for tree in trees):
        return _parts_of_trees(trees, lengths, micro_batch_tokens)
    parts: list[Part] = []
    room = 0
    for rows, width in blocks_of(lengths, members, micro_batch_tokens):
        first = 0
        while first < len(rows):
            if room < width:
                parts.append([])
                room = micro_batch_tokens
            taken = rows[first : first + room // width]
            parts[-1].append(([whole(row.tolist(), lengths) for row in taken], width))
            room -= len(taken) * width
            first += len(taken)
    return parts


def part_of_blocks(
    lengths: np.ndarray,
    members: np.ndarray,
    micro_batch_tokens: int,
    prompts: PromptIndex | None = None,
) -> Part:
    """Return blocks that hold all ``members`` in one micro-batch, which may exceed
    ``micro_batch_tokens``; arguments as ``parts_of_blocks``'s."""
    trees = _trees_that_pay(lengths, members, micro_batch_tokens, prompts)
    return _laid_out(trees, lengths, micro_batch_tokens)


def _trees_that_pay(
    lengths: np.ndarray, members: np.ndarray, micro_batch_tokens: int, prompts: PromptIndex | None
) -> list[Tree]:
    """Return ``trees_of`` the members, or a tree for each of them where fewer tokens are saved than
    branches cost: prompts of few tokens, or answers of many lengths."""
    trees = trees_of(lengths, members, micro_batch_tokens, prompts)
    sharing = [tree for tree in trees if tree.shared]
    if not sharing:
        return trees
    saved = sum((len(tree.members) - 1) * tree.shared for tree in sharing)
    branches = np.concatenate([lengths[tree.members] - tree.shared for tree in sharing])
    passes = -(-int(tree_lengths(trees, lengths).sum()) // micro_batch_tokens)
    size = -np.sort(-branches)[::passes]  # of one pass, about
    blocks = _alone(np.arange(len(size)), size, BRANCHES_TOKENS)
    padding = sum(len(rows) * width for rows, width in blocks) - int(size.sum())
    cost = BRANCH_TOKENS * len(size) + BRANCHES_TOKENS * len(blocks) + padding
    if saved > passes * cost:
        return trees
    return trees_of(lengths, members, micro_batch_tokens, None)


def _parts_of_trees(
    trees: Sequence[Tree], lengths: np.ndarray, micro_batch_tokens: int
) -> list[Part]:
    """Fill micro-batches with ``trees``, largest first, each with what fits of the next."""
    sizes = tree_lengths(trees, lengths)
    left = deque(np.argsort(-sizes, kind="stable").tolist())
    parts = []
    while left:
        taken = [left.popleft()]
        used = int(sizes[taken[0]])
        while left and used + sizes[left[0]] <= micro_batch_tokens:
            used += int(sizes[left[0]])
            taken.append(left.popleft())
        part = _laid_out([trees[at] for at in taken], lengths, micro_batch_tokens)
        while part_tokens(part) > micro_batch_tokens and len(taken) > 1:  # by padding
            left.appendleft(taken.pop())
            part = _laid_out([trees[at] for at in taken], lengths, micro_batch_tokens)
        if part_tokens(part) > micro_batch_tokens:
            part = _laid_out([trees[at] for at in taken], lengths, micro_batch_tokens, pad=False)
        parts.append(part)
    return parts


def _laid_out(
    trees: Sequence[Tree], lengths: np.ndarray, micro_batch_tokens: int, *, pad: bool = True
) -> Part:
    """Return the blocks of ``trees``: prompts and whole sequences, then branches, one a row.
    ``pad`` False: a block for each length of branch."""
    found = [
        document
        for number, tree in enumerate(trees)
        for document in documents_of(tree, number, lengths)
    ]
    roots = [document for document in found if not document.begin]
    size = np.array([document.size for document in roots], dtype=np.int64)
    part = [
        ([[roots[at] for at in row.tolist()] for row in rows], width)
        for rows, width in blocks_of(size, np.arange(len(size)), micro_batch_tokens)
    ]
    branches = sorted((d for d in found if d.begin), key=lambda branch: -branch.size)
    size = np.array([branch.size for branch in branches], dtype=np.int64)
    blocks = _alone(np.arange(len(size)), size, BRANCHES_TOKENS if pad else 0)
    return part + [([[branches[int(row[0])]] for row in rows], width) for rows, width in blocks]


def blocks_of(lengths: np.ndarray, members: np.ndarray, longest_row: int) -> Indices:
    """Return the blocks of all ``members``, longest rows first; no row exceeds ``longest_row``."""
    order = members[np.argsort(-lengths[members], kind="stable")]
    size = lengths[order]
    alone, end = _cuts(size)
    blocks = _alone(order[:alone], size[:alone], BLOCK_TOKENS)
    others = order[alone:]
    filled, rest = _filled(size[alone:], end - alone)
    if filled:
        blocks.append(([others[row] for row, _ in filled], max(load for _, load in filled)))
    if rest:
        left = others[rest]
        rows, width = _level(lengths[left], longest_row)
        blocks.append(([left[row] for row in rows], width))
    return sorted(blocks, key=lambda block: -block[1])


def _cost(tokens: np.ndarray | float, width: np.ndarray | float) -> np.ndarray | float:
    """Return what ``tokens`` in rows of ``width`` cost, in tokens without attention."""
    return tokens * (1.0 + width / ATTENTION_TOKENS)


def _cuts(size: np.ndarray) -> tuple[int, int]:
    """Return how many of the sequences of ``size`` (descending) lie alone, and where those end that
    lie in rows of their longest, by what it costs if rows are full."""
    count = len(size)
    padded = np.append(size, 0).astype(np.float64)
    places = np.unique(np.linspace(0, count, min(count + 1, CUTS)).astype(np.int64))
    first, end = places[:, None], places[None, :]
    before = np.append(0.0, np.cumsum(padded))
    opens = np.append(True, np.diff(padded[:-1]) != 0)
    own = np.append(0.0, np.cumsum(_cost(padded[:-1], padded[:-1]) + opens * BLOCK_TOKENS))
    width = padded[first]
    tokens = before[end] - before[first]
    # Two sequences of more than half a row do not share it.
    halves = np.minimum(np.searchsorted(-padded[:-1], -width / 2), end) - first
    rows = np.maximum(np.ceil(tokens / np.maximum(width, 1.0)), halves)
    gaps = np.maximum(rows * width - tokens, 0.0)
    fillers = np.where(gaps >= rows * padded[count - 1], gaps, 0.0)  # none is short enough
    rest = np.maximum(before[count] - before[end] - fillers, 0.0)
    cost = (
        own[first]
        + _cost(rows * width, width)
        + _cost(rest, padded[end] * USUAL)
        + BLOCK_TOKENS * ((tokens > 0).astype(np.float64) + (rest > 0))
    )
    cost[first > end] = np.inf
    best = np.unravel_index(int(cost.argmin()), cost.shape)
    return int(places[best[0]]), int(places[best[1]])


def _alone(order: np.ndarray, size: np.ndarray, block_tokens: int) -> Indices:
    """Return blocks of a sequence a row; one that is as long as the block before it, or hardly
    shorter, joins that: what it pads is less than the ``block_tokens`` that one more costs."""
    blocks: Indices = []
    for index, length in zip(order.tolist(), size.tolist(), strict=True):
        if blocks:
            rows, width = blocks[-1]
            if width == length or width - length < block_tokens / len(rows):
                rows.append(np.array([index]))
                continue
        blocks.append(([np.array([index])], length))
    return blocks


def _filled(size: np.ndarray, count: int) -> tuple[list[tuple[list[int], int]], list[int]]:
    """Put the first ``count`` of ``size`` (descending) in rows of the first, and what fits of the
    others in their gaps, each where the least room is left.

    Returns (places, tokens) of each row, and the places that found no room.
    """
    rows: list[list[int]] = []
    loads: list[int] = []
    free: list[tuple[int, int]] = []  # (room, row), ascending
    rest: list[int] = []
    for place, length in enumerate(size.tolist()):
        at = bisect_left(free, (length, -1))
        if at < len(free):
            room, row = free.pop(at)
        elif place < count:
            room, row = int(size[0]), len(rows)
            rows.append([])
            loads.append(0)
        else:
            rest.append(place)
            continue
        rows[row].append(place)
        loads[row] += length
        insort(free, (room - length, row))
    return list(zip(rows, loads, strict=True)), rest


def _level(size: np.ndarray, longest_row: int) -> tuple[list[np.ndarray], int]:
    """Return the rows of ``size`` (descending) of about equal load that cost least, and the tokens
    of the longest."""
    longest, total = int(size[0]), int(size.sum())
    found = []
    for multiple in MULTIPLES:
        wanted = max(1, total // (multiple * longest))
        if multiple == 1 or -(-total // wanted) <= longest_row:
            found.append(_balanced(size, wanted, longest_row))
    return min(found, key=lambda rows: float(_cost(len(rows[0]) * rows[1], rows[1])))


def _balanced(size: np.ndarray, count: int, longest_row: int) -> tuple[list[np.ndarray], int]:
    """Return ``count`` rows, or as many more as it takes for none to exceed ``longest_row``."""
    rows: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, row) for row in range(count)]
    for place, length in enumerate(size.tolist()):
        load, row = heapq.heappop(loads)
        if load + length > longest_row:
            return _balanced(size, count + 1 + count // 8, longest_row)
        rows[row].append(place)
        heapq.heappush(loads, (load + length, row))
    return [np.array(row) for row in rows if row], max(load for load, _ in loads)

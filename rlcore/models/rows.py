"""Bin packing: which sequences share a row, how long rows are, and which rows share a micro-batch,
as a function of lengths and limits alone: a run that is repeated cuts the same passes. numpy only.

Answers to one prompt are scored and trained on together: a *tree* holds the prompt, of which it is
computed once, and one branch per answer, which attends to the prompt and to itself. Log-probs and
gradients are those of whole sequences; G answers of R tokens to a prompt of P cost P + G R tokens.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from schemas.errors import UserError

ROW_MULTIPLES = (1, 2, 3)  # of the longest sequence: what a row may hold where nothing is set
SHARING_MULTIPLES = (*ROW_MULTIPLES, 4, 6, 8)  # the same where a row holds many answers to a prompt
# Tokens of a row at which attention, with its mask of the whole row, costs as much as the rest of
# the model: fitted to rows of 37 to 9,472 tokens on CPU, 0.46 M parameters. Less in larger models.
ATTENTION_TOKENS = 750


@dataclass(frozen=True, slots=True)
class Tree:
    """``members``: indices of sequences whose first ``shared`` tokens are equal and stored once.
    With one member nothing is shared."""

    members: np.ndarray
    shared: int


class Document(NamedTuple):
    """Tokens of a sequence that lie together in a row: all of ``member``, or ``size`` of them from
    ``begin`` on, as a part of the tree of that number (-1: of none)."""

    member: int
    begin: int
    size: int
    tree: int = -1


@dataclass(frozen=True, slots=True)
class PromptIndex:
    """Which sequences begin alike: ``number`` [sequences] int64, equal where the prompts are, and
    ``length`` [sequences] int64, tokens of the prompt."""

    number: np.ndarray
    length: np.ndarray


def prompts_of(token_ids: Sequence[np.ndarray], loss_mask: Sequence[np.ndarray]) -> PromptIndex:
    """Return the prompts, which are the tokens before the first that is trained on: no target lies
    in them. A sequence that nothing is trained on shares none."""
    known: dict[bytes, int] = {}
    number, length = (np.zeros(len(token_ids), dtype=np.int64) for _ in range(2))
    for row, (ids, mask) in enumerate(zip(token_ids, loss_mask, strict=True)):
        size = int(np.argmax(mask)) if mask.any() else 0
        # A unique key for a row that trains nothing: it has no answer to branch off.
        key = ids[:size].astype(np.int64).tobytes() if size else b"%d" % row
        number[row], length[row] = known.setdefault(key, len(known)), size
    return PromptIndex(number, length)


def trees_of(
    lengths: np.ndarray, members: np.ndarray, row_tokens: int, prompts: PromptIndex | None
) -> list[Tree]:
    """Return trees of at most ``row_tokens`` tokens that hold ``members``, each once.

    Branches of a prompt go to its trees in descending length. ``prompts`` None: a tree per
    sequence. A function of lengths and prompts alone.
    """
    if prompts is None:
        return [Tree(members[at : at + 1], 0) for at in range(len(members))]
    order = members[np.argsort(-lengths[members], kind="stable")]
    grouped: dict[int, list[int]] = {}
    for index, number in zip(order.tolist(), prompts.number[order].tolist(), strict=True):
        grouped.setdefault(number, []).append(index)
    trees: list[Tree] = []
    for alike in grouped.values():
        shared = int(prompts.length[alike[0]])
        for held in _split(alike, lengths, row_tokens, shared):
            # A single branch shares with none, and is laid out as a plain sequence.
            trees.append(Tree(np.array(held, dtype=np.int64), shared if len(held) > 1 else 0))
    return trees


def tree_lengths(trees: Sequence[Tree], lengths: np.ndarray) -> np.ndarray:
    """Return the tokens of each tree, [trees] int64."""
    return np.array(
        [
            int(lengths[tree.members].sum()) - (len(tree.members) - 1) * tree.shared
            for tree in trees
        ],
        dtype=np.int64,
    )


def documents_of(tree: Tree, number: int, lengths: np.ndarray) -> list[Document]:
    """Return the documents of ``tree``: its prompt and its branches, or its only sequence."""
    members = tree.members.tolist()
    if not tree.shared:
        return [Document(member, 0, int(lengths[member])) for member in members]
    prompt = Document(members[0], 0, tree.shared, number)
    branches = [
        Document(member, tree.shared, int(lengths[member]) - tree.shared, number)
        for member in members
    ]
    return [prompt, *branches]


def _split(
    alike: list[int], lengths: np.ndarray, row_tokens: int, shared: int
) -> Iterator[list[int]]:
    """Yield the sequences of one prompt by tree, each filled until the next branch does not fit."""
    held: list[int] = []
    used = shared  # each tree has its own copy of the prompt
    for index in alike:
        branch = int(lengths[index]) - shared
        if held and used + branch > row_tokens:
            yield held
            held, used = [], shared
        held.append(index)
        used += branch
    yield held


Rows = tuple[list[list[Tree]], np.ndarray]  # per row its trees, in order, and its tokens
Part = tuple[list[list[Document]], int]  # a micro-batch: its rows, in order, and their width


def part_tokens(part: Part) -> int:
    """Return the tokens of a micro-batch, padding included."""
    rows, width = part
    return len(rows) * width


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
        room = np.flatnonzero(free[: len(rows)] >= length)
        row = int(room[0]) if len(room) else len(rows)
        if row == len(rows):
            rows.append([])
            free[row] = row_tokens
        rows[row].append(index)
        free[row] -= length
    return [np.array(row, dtype=np.int64) for row in rows]


@dataclass(frozen=True, slots=True)
class Layout:
    """How sequences of ``lengths`` [sequences] are laid out; limits as ``packing.pack``'s.

    ``row_tokens`` None: the multiple of the longest sequence that costs least, the shortest of
    equals. ``prompts``: of all sequences, where answers to one may share it.
    """

    lengths: np.ndarray
    micro_batch_tokens: int
    row_tokens: int | None = None
    one_per_row: bool = False
    prompts: PromptIndex | None = None

    def parts(self, members: np.ndarray) -> list[Part]:
        """Return the micro-batches that hold ``members``, indices of sequences."""
        widths = self._widths(int(self.lengths[members].max()), choose=True)
        filled = (self._filled(members, width) for width in widths)
        return min((self._cut(*rows, self.micro_batch_tokens) for rows in filled), key=_cost)

    def part(self, members: np.ndarray) -> Part:
        """Return rows that hold all ``members`` in one micro-batch. It may exceed
        ``micro_batch_tokens`` where no rows fit."""
        widths = self._widths(int(self.lengths[members].max()), choose=self.prompts is not None)
        filled = [self._filled(members, width) for width in widths]
        parts = [self._cut(rows, used, len(rows) * int(used[0]))[0] for rows, used in filled]
        fitting = [part for part in parts if part_tokens(part) <= self.micro_batch_tokens]
        return min(fitting or parts, key=lambda part: _cost([part]))

    def parts_of_groups(self, members: np.ndarray, groups: np.ndarray) -> list[Part]:
        """Return the micro-batches, each filled with whole groups until the next does not fit.

        ``groups`` [sequences]. Raises ``UserError`` where a group alone exceeds
        ``micro_batch_tokens``.
        """
        order = members[np.argsort(groups[members], kind="stable")]
        names = groups[order]
        begins = np.flatnonzero(np.append(True, names[1:] != names[:-1]))
        ends = np.append(begins[1:], len(order))
        tokens = np.cumsum(self.lengths[order])
        parts: list[Part] = []
        first = 0
        while first < len(begins):
            start = int(begins[first])

            def fitting(count: int, first: int = first, start: int = start) -> Part | None:
                part = self.part(order[start : ends[first + count - 1]])
                if part_tokens(part) <= self.micro_batch_tokens:
                    return part
                if count > 1:
                    return None
                raise UserError(
                    f"a prompt's {ends[first] - start} responses need {part_tokens(part)} tokens "
                    f"of one micro-batch and it holds {self.micro_batch_tokens}; raise "
                    "hardware.learner.micro_batch_tokens or compare fewer responses"
                )

            # Each try costs a layout, so begin with as many as fit without padding or sharing.
            most = int(tokens[start] - self.lengths[order[start]]) + self.micro_batch_tokens
            guess = int(np.searchsorted(tokens[ends[first:] - 1], most, "right"))
            count, part = _most(fitting, guess, len(begins) - first)
            parts.append(part)
            first += count
        return parts

    def _widths(self, longest: int, *, choose: bool) -> list[int]:
        """Return the tokens that a row may have; several to ``choose`` from."""
        if self.row_tokens is not None:
            return [self.row_tokens]
        if self.one_per_row or not choose:
            return [longest]
        multiples = ROW_MULTIPLES if self.prompts is None else SHARING_MULTIPLES
        return [longest * n for n in multiples if n == 1 or longest * n <= self.micro_batch_tokens]

    def _filled(self, members: np.ndarray, row_tokens: int) -> Rows:
        """Return rows of trees and the tokens in each, fullest first.

        FFD fills rows unevenly; after sorting, rows of similar length share a micro-batch, which is
        trimmed to its longest row. Raises ``UserError`` when a sequence is longer than a row.
        """
        lengths, apart = self.lengths, self.one_per_row
        longest = members[int(np.argmax(lengths[members]))]
        if lengths[longest] > row_tokens:
            raise UserError(
                f"sequence {longest} has {lengths[longest]} tokens and a packed row holds"
                f" {row_tokens}; raise hardware.learner.row_tokens or micro_batch_tokens, or"
                " shorten prompts and responses"
            )
        trees = trees_of(lengths, members, row_tokens, None if apart else self.prompts)
        sizes = tree_lengths(trees, lengths)
        plan = plan_rows(sizes, row_tokens, one_per_row=apart)
        rows = [[trees[at] for at in row.tolist()] for row in plan]
        used = np.array([sizes[row].sum() for row in plan])
        order = np.argsort(-used, kind="stable")
        return [rows[i] for i in order.tolist()], used[order]

    def _cut(self, rows: list[list[Tree]], used: np.ndarray, most_tokens: int) -> list[Part]:
        """Return each micro-batch of at most ``most_tokens``, from rows by descending ``used``."""
        parts: list[Part] = []
        first = 0
        while first < len(rows):
            width = int(used[first])
            count = max(1, most_tokens // width)
            number = itertools.count()
            documents = [
                [each for tree in row for each in documents_of(tree, next(number), self.lengths)]
                for row in rows[first : first + count]
            ]
            parts.append((documents, width))
            first += count
        return parts


def _most(fitting: Callable[[int], Part | None], guess: int, limit: int) -> tuple[int, Part]:
    """Return a count of at most ``limit`` that fits where one more does not, and its part; the
    search begins at ``guess``. ``fitting(1)`` fits or raises."""
    count, step, too_many = max(1, guess), 1, limit + 1
    # Steps that double until a count does not fit, then halving.
    held: tuple[int, Part] = 0, ([], 0)
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


def _cost(parts: list[Part]) -> int:
    """Return what the passes over ``parts`` cost, in an arbitrary unit."""
    return sum(
        # A token costs the same in every layer but attention, where it costs the width of its row.
        part_tokens(part) * (ATTENTION_TOKENS + part[1])
        for part in parts
    )

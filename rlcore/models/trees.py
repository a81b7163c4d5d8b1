"""Sequences that begin with the same prompt, of which it is computed once.

The answers sampled for a prompt are scored and trained on together: a *tree* holds the prompt and
one branch per answer, and a branch attends to the prompt and to itself. Log-probs and gradients are
those of whole sequences; G answers of R tokens to a prompt of P cost P + G R tokens instead of
G (P + R). numpy only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


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
        trees += _cut(alike, lengths, row_tokens, int(prompts.length[alike[0]]))
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


def whole(members: Iterable[int], lengths: np.ndarray) -> list[Document]:
    """Return a document for each sequence of ``members``."""
    return [Document(index, 0, int(lengths[index])) for index in members]


def documents_of(tree: Tree, number: int, lengths: np.ndarray) -> list[Document]:
    """Return the documents of ``tree``: its prompt and its branches, or its only sequence."""
    members = tree.members.tolist()
    if not tree.shared:
        return whole(members, lengths)
    prompt = Document(members[0], 0, tree.shared, number)
    branches = [
        Document(member, tree.shared, int(lengths[member]) - tree.shared, number)
        for member in members
    ]
    return [prompt, *branches]


def _cut(alike: list[int], lengths: np.ndarray, row_tokens: int, shared: int) -> list[Tree]:
    """Cut the sequences of one prompt into trees, each filled until the next branch does not
    fit."""
    trees: list[Tree] = []
    held: list[int] = []
    # Each tree has its own copy of the prompt.
    used = shared
    for index in alike:
        branch = int(lengths[index]) - shared
        if held and used + branch > row_tokens:
            trees.append(_tree(held, shared))
            held, used = [], shared
        held.append(index)
        used += branch
    return [*trees, _tree(held, shared)]


def _tree(held: list[int], shared: int) -> Tree:
    # A single branch shares with none, and is laid out as a plain sequence.
    return Tree(np.array(held, dtype=np.int64), shared if len(held) > 1 else 0)

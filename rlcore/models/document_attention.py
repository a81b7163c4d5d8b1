"""Attention of documents that lie one behind the other, by a loop of this project.

float32 on a CPU only; ``rlcore.models.block_attention`` says what attends to what. Axes: T tokens,
H query heads, K heads of keys and values, D dimensions of a head.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from rlcore.kernels import parallel
from rlcore.kernels.parallel import run
from rlcore.kernels.tiles import COLUMNS, padded, scratch_of
from rlcore.models.blocks import Shape

MOST_KEYS = 512  # of a document; torch's attention computes much longer ones sooner


@dataclass(frozen=True, slots=True)
class Documents:
    """``table`` [documents, 4] int64: of each the place of its first token and the number of its
    tokens, then those of the prompt that it continues, 0 and 0 where there is none. ``groups``
    [groups + 1] int64: bounds of the documents with one prompt, which comes first. ``room``: keys
    that any token attends to, at most, rounded up to tiles."""

    table: torch.Tensor
    groups: torch.Tensor
    room: int


def documents_of_pass(shapes: tuple[Shape, ...], positions: np.ndarray) -> Documents | None:
    """Return the documents of a pass in blocks of ``shapes`` over ``positions`` [tokens], which
    restart at 0 where one begins; None where one is too long."""
    rows = np.concatenate([np.full(shape.rows, shape.width) for shape in shapes])
    row_start = np.cumsum(rows) - rows
    begins = positions == 0
    begins[row_start] = True
    start = np.flatnonzero(begins)
    prompt, asked = np.zeros((2, len(start)), dtype=np.int64)
    first = 0
    for shape in shapes:
        if shape.prompts is not None and shape.asked is not None:
            at = np.searchsorted(start, row_start[first : first + shape.rows])
            prompt[at], asked[at] = shape.prompts, shape.asked
        first += shape.rows
    size = np.diff(np.append(start, len(positions)))
    longest = int((asked + size).max())
    if longest > MOST_KEYS:
        return None
    of = np.where(asked > 0, np.searchsorted(start, prompt), np.arange(len(start)))
    order = np.lexsort((asked > 0, of))
    table = np.stack([start, size, prompt, asked], 1)[order]
    groups = np.append(np.flatnonzero(np.diff(of[order], prepend=-1)), len(start))
    return Documents(torch.from_numpy(table), torch.from_numpy(groups), padded(longest))


def serves(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether ``DocumentAttention`` computes them, [1, heads, T, D] each."""
    return (
        all(parallel.serves(each) for each in (query, key, value))
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % COLUMNS == 0
        and query.shape[1] % key.shape[1] == 0
        and query.shape[2] == key.shape[2]
        and key.shape == value.shape
        and len(query) == 1
    )


class DocumentAttention(torch.autograd.Function):
    """softmax(query key^T scale) value of each token, over what its document continues and its
    document up to itself."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        documents: Documents,
    ) -> torch.Tensor:
        """``query`` [1, H, T, D], ``key``, ``value`` [1, K, T, D] -> [1, T, H, D]."""
        query, key, value = (_by_token(each) for each in (query, key, value))
        _, heads, tokens, dim = query.shape
        y, totals = query.new_empty(1, tokens, heads, dim), query.new_empty(tokens, heads)
        _run("attend_documents", query, key, value, scale, documents, y, totals)
        ctx.scale, ctx.documents = scale, documents
        ctx.save_for_backward(query, key, value, y, totals)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Any) -> tuple[torch.Tensor | None, ...]:
        """Return gradients for query, key and value."""
        query, key, value, y, totals = ctx.saved_tensors
        query, key, value = (_by_token(each) for each in (query, key, value))  # hooks may copy them
        gradient = outputs[0].contiguous()
        shapes = [each.transpose(1, 2).shape for each in (query, key, value)]
        into = query.new_zeros(sum(each.numel() for each in (query, key, value)))
        given = (query, key, value, ctx.scale, ctx.documents, y, totals)
        _run("attend_documents_gradient", *given, gradient, into)
        parts = into.split([shape.numel() for shape in shapes])
        found = (
            part.view(shape).transpose(1, 2) for part, shape in zip(parts, shapes, strict=True)
        )
        return *found, None, None


def _by_token(heads: torch.Tensor) -> torch.Tensor:
    """Return ``heads`` [1, heads, T, D] so that the heads of a token lie one behind the other."""
    if heads.stride(-1) == 1 and heads.stride(1) == heads.shape[-1]:
        return heads
    return heads.transpose(1, 2).contiguous().transpose(1, 2)


def _run(
    loop: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    documents: Documents,
    *more: torch.Tensor,
) -> None:
    """Run ``loop`` over the groups of ``documents``, each with one head of keys."""
    _, heads, tokens, dim = query.shape
    kv_heads = key.shape[1]
    size = scratch_of(documents.room, dim)
    scratch = query.new_empty(torch.get_num_threads(), size)
    run(
        loop,
        (len(documents.groups) - 1) * kv_heads,
        *(query.numel(), tokens, heads, kv_heads, dim),
        *(documents.groups, documents.table, query, key, value),
        *(each.stride(2) for each in (query, key, value)),
        *(float(scale), documents.room, scratch, size),
        *more,
    )

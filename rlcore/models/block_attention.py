"""Attention of each row to itself where the rows of a pass differ in length.

An attention function for transformers: query, key and value of ``[1, tokens]`` are views of blocks
of equal rows, each attended to on its own. A pass then needs no mask of rows as long as the longest
sequence, and no mask at all for rows of one sequence.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from rlcore.models.blocks import BLOCKS, Shape
from rlcore.models.tree_mask import tree_mask


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The blocks of a pass. ``masks``: of each, what to add to scores, [rows or 1, 1, tokens of a
    row, keys]; None for plain causal attention. ``prompts``: of each, the places of the keys before
    its own, [rows x tokens] int64; None where there are none."""

    shapes: tuple[Shape, ...]
    masks: tuple[torch.Tensor | None, ...]
    prompts: tuple[torch.Tensor | None, ...]

    @property
    def sizes(self) -> list[int]:
        """Tokens of each block."""
        return [shape.rows * shape.width for shape in self.shapes]


def blocks_of_pass(
    shapes: tuple[Shape, ...], position_ids: torch.Tensor, dtype: torch.dtype
) -> Blocks:
    """Return the blocks of a pass over ``position_ids`` [1, tokens], which restart at 0 where a
    sequence begins; ``dtype``: of the model."""
    sizes = [shape.rows * shape.width for shape in shapes]
    device = position_ids.device
    masks: list[torch.Tensor | None] = []
    prompts: list[torch.Tensor | None] = []
    for shape, positions in zip(shapes, position_ids[0].split(sizes), strict=True):
        if shape.prompts is not None and shape.asked is not None:
            asked = shape.asked[:, None]
            column = np.arange(int(asked.max()))
            places = shape.prompts[:, None] + np.minimum(column, asked - 1)
            prompts.append(torch.from_numpy(places.reshape(-1)).to(device))
            own = np.tri(shape.width, dtype=bool)
            # Rows whose prompts are of one length see alike.
            seen = np.unique(asked, axis=0) if (asked == asked[0]).all() else asked
            before = np.broadcast_to(
                (column < seen)[:, None], (len(seen), shape.width, len(column))
            )
            after = np.broadcast_to(own, (len(seen), *own.shape))
            sees = torch.from_numpy(np.concatenate([before, after], 2)).to(device)
            masks.append(_to_add(sees, dtype))
            continue
        prompts.append(None)
        if not shape.several:
            masks.append(None)
            continue
        sequence = (positions.view(shape.rows, shape.width) == 0).cumsum(1)
        seen = (sequence[:, :, None] == sequence[:, None, :]).tril_()
        masks.append(_to_add(seen, dtype))
    return Blocks(shapes, tuple(masks), tuple(prompts))


def _to_add(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return 0 where ``seen`` [rows, queries, keys] and -inf elsewhere, for all heads."""
    hidden = torch.full(seen.shape, float("-inf"), dtype=dtype, device=seen.device)
    return hidden.masked_fill_(seen, 0.0)[:, None]


def attend_by_blocks(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    blocks: Blocks | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return what transformers' attention functions do, [1, tokens, heads, dim].

    ``query`` [1, heads, tokens, dim], ``key``, ``value`` [1, heads of them, tokens, dim]. Without
    ``blocks`` every row is one sequence. Raises ``ValueError`` for what it does not compute:
    a mask, windows, sinks, soft-capping, biases, dropout, attention to later tokens.
    """
    asked = {"attention_mask": attention_mask, **{name: options.get(name) for name in _UNSERVED}}
    unserved = [name for name, option in asked.items() if option is not None]
    unserved += ["dropout"] * (dropout > 0) + ["no causality"] * (not _is_causal(module, options))
    if unserved:
        raise ValueError(f"{type(module).__name__} asks for {', '.join(unserved)}")
    if blocks is None:
        rows, _, width, _ = query.shape
        blocks = Blocks((Shape(rows, width, several=False),), (None,), (None,))
    heads, dim = query.shape[1], value.shape[-1]
    flat = [each.transpose(1, 2).flatten(0, 1) for each in (query, key, value)]
    cut = [each.split(blocks.sizes) for each in flat]
    found = []
    for shape, mask, prompts, *parts in zip(
        blocks.shapes, blocks.masks, blocks.prompts, *cut, strict=True
    ):
        rows, width = shape.rows, shape.width
        own = [part.view(rows, width, *part.shape[1:]) for part in parts]
        if prompts is not None:  # keys and values of the prompts go before the rows' own
            for at in (1, 2):
                asked = flat[at].index_select(0, prompts).view(rows, -1, *own[at].shape[2:])
                own[at] = torch.cat([asked, own[at]], 1)
        q, k, v = (each.transpose(1, 2) for each in own)
        attended = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
        )
        found.append(attended.transpose(1, 2).reshape(rows * width, heads, dim))
    whole = torch.cat(found) if len(found) > 1 else found[0]
    return whole.view(query.shape[0], query.shape[2], heads, dim), None


def _is_causal(module: torch.nn.Module, options: dict[str, Any]) -> bool:
    given = options.get("is_causal")
    return bool(getattr(module, "is_causal", True) if given is None else given)


_UNSERVED = ("sliding_window", "softcap", "s_aux", "position_bias", "head_mask", "cache")
AttentionInterface.register(BLOCKS, attend_by_blocks)


def what_is_seen(
    lm: PreTrainedModel,
    position_ids: torch.Tensor,
    blocks: tuple[Shape, ...],
    documents: torch.Tensor | None,
    continued: torch.Tensor | None,
) -> dict[str, Any]:
    """Return what ``lm`` is called with besides tokens and positions, for a pass that
    ``rlcore.models.packing.MicroBatch`` describes: its blocks, or the mask of its rows."""
    if blocks:
        return {"blocks": blocks_of_pass(blocks, position_ids, lm.dtype)}
    return {"attention_mask": tree_mask(documents, continued)}

"""Attention of each row to itself where the rows of a pass differ in length.

An attention function for transformers: query, key and value of ``[1, tokens]`` are views of blocks
of equal rows, each attended to on its own. A pass then needs no mask of rows as long as the longest
sequence, and no mask at all for rows of one sequence.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from rlcore.models.gpu.blocks import BLOCKS, Shape
from rlcore.models.tree_mask import tree_mask


@dataclass(frozen=True, eq=False)  # without slots: what is computed from the fields is kept
class Blocks:
    """The blocks of a pass over ``position_ids`` [1, tokens], which restart at 0 where a sequence
    begins; ``dtype``: of the model."""

    shapes: tuple[Shape, ...]
    position_ids: torch.Tensor
    dtype: torch.dtype

    @property
    def sizes(self) -> list[int]:
        """Tokens of each block."""
        return [shape.rows * shape.width for shape in self.shapes]

    @cached_property
    def prompts(self) -> tuple[torch.Tensor | None, ...]:
        """Of each block the places of the keys before its own, [rows x tokens] int64; None where
        there are none."""
        return tuple(
            None if places is None else torch.from_numpy(places.reshape(-1)).to(self._device)
            for places in map(_places, self.shapes)
        )

    @cached_property
    def masks(self) -> tuple[torch.Tensor | None, ...]:
        """Of each block what to add to scores, [rows or 1, 1, tokens of a row, keys]; None for
        plain causal attention."""
        positions = self.position_ids[0].split(self.sizes)
        seen = (self._seen(*each) for each in zip(self.shapes, positions, strict=True))
        return tuple(None if each is None else _to_add(each, self.dtype) for each in seen)

    def _seen(self, shape: Shape, positions: torch.Tensor) -> torch.Tensor | None:
        if shape.asked is not None:
            asked = shape.asked[:, None]
            column = np.arange(int(asked.max()))
            own = np.tri(shape.width, dtype=bool)
            # Rows whose prompts are of one length see alike.
            seen = np.unique(asked, axis=0) if (asked == asked[0]).all() else asked
            before = np.broadcast_to(
                (column < seen)[:, None], (len(seen), shape.width, len(column))
            )
            after = np.broadcast_to(own, (len(seen), *own.shape))
            return torch.from_numpy(np.concatenate([before, after], 2)).to(self._device)
        if not shape.several:
            return None
        sequence = (positions.view(shape.rows, shape.width) == 0).cumsum(1)
        return (sequence[:, :, None] == sequence[:, None, :]).tril_()

    @property
    def _device(self) -> torch.device:
        return self.position_ids.device


def _places(shape: Shape) -> np.ndarray | None:
    """Return the places of the prompt of each row, [rows, tokens of the longest]; those of shorter
    ones end with repetitions, which the mask hides."""
    if shape.prompts is None or shape.asked is None:
        return None
    column = np.arange(int(shape.asked.max()))
    return shape.prompts[:, None] + np.minimum(column, shape.asked[:, None] - 1)


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
        attended = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )
        return attended.transpose(1, 2), None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _by_torch(query, key, value, scale, blocks), None


def _by_torch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, blocks: Blocks
) -> torch.Tensor:
    """Return the attention of each block, [1, tokens, heads, dim]."""
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
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
        found.append(attended.transpose(1, 2).reshape(rows * width, *attended.shape[1::2]))
    whole = torch.cat(found) if len(found) > 1 else found[0]
    return whole[None]


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
        return {"blocks": Blocks(blocks, position_ids, lm.dtype)}
    return {"attention_mask": tree_mask(documents, continued)}

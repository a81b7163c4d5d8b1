"""Attention of rows that each continue a prompt, one query per row: a prompt's keys and values are
kept once for all its rows.

Keys, values and scores are float32 whatever the model's dtype, as inside torch's own kernels.
Axes: B rows, K heads of keys and values, G query heads per such head, D dimensions of a head,
S slots of a block, T token positions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicLayer

BLOCK = 64  # columns by which the buffers of the rows' own tokens grow
MOST_SLOTS = 2  # per row, before there are new blocks

States = tuple[torch.Tensor, torch.Tensor]  # keys and values of prompts, [prompts, K, T, D]


def of_all_prompts(passes: Sequence[States]) -> list[torch.Tensor]:
    """Return keys and values of the prompts of all ``passes``, which end in one column.

    Zeros are before them: what padding holds must be finite, as it is multiplied by a weight of 0.
    """
    width = max(keys.shape[2] for keys, _ in passes)
    return [
        torch.cat([torch.nn.functional.pad(x, (0, 0, width - x.shape[2], 0)) for x in kind])
        for kind in zip(*passes, strict=True)
    ]


class Slots:
    """Which rows attend to which prompt, in blocks of S slots that share one prompt's keys.

    A prompt with more than S rows has several blocks, so that prompts with many rows and prompts
    with few can be computed in one matrix product per block with at most ``MOST_SLOTS`` slots per
    row. ``prompts``: the prompt of each block. ``to_slots``: int64 [blocks * K * S], which of the
    [B * K] queries each slot holds; ``to_rows``: int64 [B * K], the slot of each; None where they
    would change nothing.
    """

    def __init__(self, prompt_of: torch.Tensor, heads: int, device: torch.device) -> None:
        """``prompt_of``: the prompt of each row, int64 [B] on CPU; ``heads``: K."""
        self._heads, self._device = heads, device
        self.to_slots: torch.Tensor | None = None
        self.to_rows: torch.Tensor | None = None
        counts = prompt_of.bincount()
        present = int((counts > 0).sum())
        self.size = -(-len(prompt_of) // present)
        blocks = (counts + self.size - 1) // self.size
        self.prompts = torch.arange(len(counts)).repeat_interleave(blocks)
        order = prompt_of.argsort(stable=True)
        rank = torch.empty_like(order)  # of a row among those of its prompt
        rank[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts)[prompt_of[order]]
        self._slot = ((blocks.cumsum(0) - blocks)[prompt_of]) * self.size + rank
        self._index()

    def keep(self, order: torch.Tensor) -> bool:
        """Let rows leave; ``order``: which row each place holds now. Return whether the blocks
        still fit the rows; otherwise make new ``Slots``."""
        self._slot = self._slot[order]
        if len(self.prompts) * self.size > MOST_SLOTS * len(order):
            return False
        self._index()
        return True

    def _index(self) -> None:
        heads, size, blocks = self._heads, self.size, len(self.prompts)
        block, place = self._slot // size, self._slot % size
        to_rows = ((block[:, None] * heads + torch.arange(heads)) * size + place[:, None]).view(-1)
        to_slots = torch.zeros(blocks * heads * size, dtype=torch.long)
        to_slots[to_rows] = torch.arange(len(to_rows))
        same = torch.equal(to_rows, torch.arange(len(to_slots)))
        self.to_slots = None if same else to_slots.to(self._device)
        self.to_rows = None if same else to_rows.to(self._device)


class KeptLayer(DynamicLayer):
    """Keys and values of one layer: those of the prompts, and those of the rows' own tokens.

    A layer of transformers' cache, whose attention is ``attend``.
    """

    def __init__(self, passes: Sequence[States], rows: int, room: int) -> None:
        """Take over the prompts that each pass computed; a pass pads them on the left.

        ``room``: columns for tokens of the rows.
        """
        super().__init__()
        self.is_initialized = True
        # Keys and values, [blocks * K, T, D].
        self._of_prompts = [each.float().flatten(0, 1) for each in of_all_prompts(passes)]
        self._heads, dim = passes[0][0].shape[1], passes[0][0].shape[3]
        self._own = self._of_prompts[0].new_empty(2, rows, self._heads, room, dim)
        self._end = 0

    def select(self, blocks: torch.Tensor) -> None:
        """Let the blocks have the prompts of the present blocks ``blocks``."""
        self._of_prompts = [
            each.unflatten(0, (-1, self._heads)).index_select(0, blocks).flatten(0, 1)
            for each in self._of_prompts
        ]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append a token to each row, [B, K, 1, D] of keys and of values, and return them."""
        del args, options
        if self._end == self._own.shape[3]:
            self._own = torch.nn.functional.pad(self._own, (0, 0, 0, BLOCK))
        states = torch.stack((key_states, value_states))
        self._own[:, : len(key_states), :, self._end] = states[:, :, :, 0]
        self._end += 1
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Return the columns of prompts and own tokens."""
        return self._of_prompts[0].shape[1] + self._end

    def move(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Copy the own tokens of rows ``source`` to the places ``to``."""
        self._own[:, to, :, : self._end] = self._own[:, source, :, : self._end]

    def attend(
        self, queries: torch.Tensor, slots: Slots, hidden: torch.Tensor | None
    ) -> torch.Tensor:
        """Return what each query, [B * K, G, D] and already scaled, reads from its prompt and its
        row's own tokens, in that form. ``hidden``: bool [blocks, 1, T], padding of the prompts."""
        own_keys, own_values = self._own.flatten(1, 2)[:, : len(queries), : self._end]
        own_scores = torch.bmm(queries, own_keys.transpose(1, 2))
        _, group, dim = queries.shape
        keys, values = self._of_prompts
        size, width = slots.size, keys.shape[1]
        by_block = _taken(queries, slots.to_slots).reshape(-1, size * group, dim)
        scores = torch.bmm(by_block, keys.transpose(1, 2))
        if hidden is not None:
            scores.view(len(hidden), -1, width).masked_fill_(hidden, -torch.inf)
        scores = _taken(scores.view(-1, group, width), slots.to_rows)
        weights = torch.cat((scores, own_scores), -1).softmax(-1)
        of_prompt = _taken(weights[..., :width], slots.to_slots).reshape(-1, size * group, width)
        read = _taken(torch.bmm(of_prompt, values).view(-1, group, dim), slots.to_rows)
        return read.baddbmm_(weights[..., width:], own_values)


def _taken(entries: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
    return entries if index is None else entries.index_select(0, index)

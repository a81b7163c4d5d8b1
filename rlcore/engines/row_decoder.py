"""Rows of tokens that a transformers model continues together, a token of each row per step.

Keys and values of all rows are in one buffer per layer, and a step writes its column in place.
Equal prompts are computed once, and where every layer attends to all earlier tokens their keys are
kept once. Axes: B rows, T token positions, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    Cache,
    DynamicCache,
    DynamicLayer,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rlcore.cluster.progress import advance
from rlcore.engines.shared_prompts import BLOCK, KeptLayer, Slots, States, of_all_prompts
from rlcore.models.architectures import takes_masks

PREFILL_TOKENS = 4096  # of one pass, padding included; a longer prompt has its own pass
GROUPED = "sdpa_grouped"


def grouped_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    continued: "SharedRows | None" = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return what ``sdpa_attention_forward`` does, [rows, queries, heads, dim].

    ``continued``: rows whose layers hold the keys and values that the single query of each reads.
    """
    if continued is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
    rows, heads, _, dim = query.shape
    layer = continued.layers[module.layer_idx]
    scale = dim**-0.5 if scaling is None else scaling
    queries = (query.float() * scale).reshape(-1, heads // key.shape[1], dim)
    attended = layer.attend(queries, continued.slots, continued.hidden)
    return attended.view(rows, 1, heads, -1).to(query.dtype), None


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)


class SharedRows:
    """``CachedRows`` of a model that ``may_share_prompts``: equal prompts have their keys once.

    What the rows attend to is ``slots`` and ``hidden``, bool [blocks, 1, T]: the padding of the
    prompts, None where there is none.
    """

    def __init__(
        self,
        device: torch.device,
        passes: Sequence[Sequence[States]],
        prompt_of: torch.Tensor,
        lengths: Sequence[int],
        most: int,
    ) -> None:
        """Arguments as ``CachedRows``'s."""
        self._device = device
        room = min(most, BLOCK)
        self.layers = [KeptLayer(each, len(prompt_of), room) for each in zip(*passes, strict=True)]
        self._prompt_of, self._heads = prompt_of, passes[0][0][0].shape[1]
        before = lengths[0] - torch.tensor(lengths)  # columns of padding
        padding = torch.arange(lengths[0]) < before[:, None, None]
        self.hidden = padding.to(self._device) if before.any() else None
        self._blocks = torch.arange(len(lengths))  # the prompt of each
        self._share()
        self._cache = Cache(layers=list(self.layers))

    def next_inputs(self) -> dict[str, Any]:
        """Return what the model is called with beside the next token of each row."""
        # Of that form it is taken as it is; what is seen is the layers' to say.
        mask = torch.ones(len(self._prompt_of), 1, 1, 1, dtype=torch.bool, device=self._device)
        return {"attention_mask": mask, "past_key_values": self._cache, "continued": self}

    def keep(self, to: torch.Tensor, source: torch.Tensor, order: torch.Tensor) -> None:
        """Copy rows ``source`` to the places ``to``; the rows ``order`` are left, in that order.
        All are indices on CPU."""
        places, rows = to.to(self._device), source.to(self._device)
        for layer in self.layers:
            layer.move(places, rows)
        self._prompt_of = self._prompt_of[order]
        if not self.slots.keep(order):
            self._share()

    def _share(self) -> None:
        """Give each block of new slots the keys of its prompt."""
        self.slots = Slots(self._prompt_of, self._heads, self._device)
        if torch.equal(self.slots.prompts, self._blocks):
            return
        taken = torch.searchsorted(self._blocks, self.slots.prompts).to(self._device)
        self._blocks = self.slots.prompts
        if self.hidden is not None:
            self.hidden = self.hidden[taken]
        for layer in self.layers:
            layer.select(taken)


def may_share_prompts(model: PreTrainedModel) -> bool:
    """Return whether rows of ``model`` can be ``SharedRows`` where its attention is ``GROUPED`` and
    it hands on what it is called with: every layer attends to all earlier tokens, and values are as
    wide as keys."""
    return takes_masks(model) and not hasattr(model.config.get_text_config(), "v_head_dim")


class _Layer(DynamicLayer):
    """Keys and values of one layer, which are views of larger buffers."""

    def __init__(self, states: Sequence[torch.Tensor], room: int) -> None:
        """``states``: keys and values of each row's prompt; ``room``: columns that follow."""
        super().__init__()
        rows, _, self._end, _ = states[0].shape
        self.dtype, self.device, self.is_initialized = states[0].dtype, states[0].device, True
        self._buffers = [torch.nn.functional.pad(each, (0, 0, 0, room)) for each in states]
        self._show(rows)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append columns; return all keys and values."""
        del args, options
        rows, begin = key_states.shape[0], self._end
        self._end += key_states.shape[2]
        if self._end > self._buffers[0].shape[2]:
            self._buffers = [
                torch.nn.functional.pad(buffer[:rows], (0, 0, 0, BLOCK)) for buffer in self._buffers
            ]
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:rows, :, begin : self._end] = new
        return self._show(rows)

    def move(self, to: torch.Tensor, source: torch.Tensor, rows: int) -> None:
        """Copy rows ``source`` to the places ``to``; the first ``rows`` rows are left."""
        for buffer in self._buffers:
            buffer[to, :, : self._end] = buffer[source, :, : self._end]
        self._show(rows)

    def _show(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = (buffer[:rows, :, : self._end] for buffer in self._buffers)
        return self.keys, self.values


class CachedRows:
    """Rows that a transformers model continues, each with the keys of its prompt: of any model, by
    its own attention."""

    def __init__(
        self,
        device: torch.device,
        passes: Sequence[Sequence[States]],
        prompt_of: torch.Tensor,
        lengths: Sequence[int],
        most: int,
    ) -> None:
        """``passes``: keys and values of each layer, per pass over prompts. ``prompt_of``: the
        prompt of each row, int64 [B] on CPU, ascending without gaps; ``lengths``: of each prompt,
        in tokens, the longest first; ``most``: tokens that will follow."""
        self._end = lengths[0]
        room, prompt_of_row = min(most, BLOCK), prompt_of.to(device)
        self._layers = [
            _Layer([each[prompt_of_row] for each in of_all_prompts(states)], room)
            for states in zip(*passes, strict=True)
        ]
        columns = torch.arange(lengths[0] + most)
        padding = lengths[0] - torch.tensor(lengths)[prompt_of, None]
        self._visible = (columns >= padding).to(device)  # [B, T]
        self._cache = Cache(layers=list(self._layers))

    def next_inputs(self) -> dict[str, Any]:
        """Return what the model is called with beside the next token of each row."""
        self._end += 1
        mask = self._visible[:, : self._end].long()
        return {"attention_mask": mask, "past_key_values": self._cache}

    def keep(self, to: torch.Tensor, source: torch.Tensor, order: torch.Tensor) -> None:
        """Copy rows ``source`` to the places ``to``; the rows ``order`` are left, in that order.
        All are indices on CPU."""
        places, rows, there = (each.to(self._visible.device) for each in (to, source, order))
        for layer in self._layers:
            layer.move(places, rows, len(order))
        self._visible = self._visible[there]


class RowDecoder:
    """Continues rows token by token.

    ``logits``: behind each row's last token, [B, V]. ``order``: which prompt each row continues,
    [B]; rows change places when others leave.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        most: int,
        *,
        shared: bool = False,
    ) -> None:
        """Compute ``prompts``; at most ``most`` tokens will follow. ``shared``: ``SharedRows``."""
        self._model, self._device = model, model.device
        rows_of: dict[tuple[int, ...], list[int]] = {}
        for row, prompt in enumerate(prompts):
            rows_of.setdefault(tuple(prompt), []).append(row)
        different = sorted(rows_of, key=len, reverse=True)
        self.order = torch.tensor([row for prompt in different for row in rows_of[prompt]])
        counts = torch.tensor([len(rows_of[prompt]) for prompt in different])
        prompt_of = torch.arange(len(different)).repeat_interleave(counts)
        lengths = [len(prompt) for prompt in different]
        self._positions = torch.tensor(lengths)[prompt_of].to(self._device)  # of the next token
        passes, logits = [], []
        for start, stop in _passes(different):
            states, logits_BV = self._prefill(different[start:stop])
            passes.append(states)
            logits.append(logits_BV)
        self.logits = torch.cat(logits)[prompt_of.to(self._device)]
        kind = SharedRows if shared else CachedRows
        self._rows = kind(self._device, passes, prompt_of, lengths, most)

    def step(self, tokens: torch.Tensor) -> None:
        """Append a token to each row, [B] in the order of the rows; compute the next ``logits``."""
        inputs = self._rows.next_inputs()
        self.logits = self._pass(tokens[:, None], self._positions[:, None], **inputs)
        self._positions = self._positions + 1

    def keep(self, staying: torch.Tensor) -> torch.Tensor:
        """Let the rows leave that are not ``staying``, bool [B]; return which row each place holds
        now. The last rows take the places of those that leave, so that few are copied."""
        rows = int(staying.sum())
        order = torch.arange(len(staying))
        to = torch.nonzero(~staying[:rows])[:, 0]
        source = torch.nonzero(staying[rows:])[:, 0] + rows
        order[to] = source
        order = order[:rows]
        self._rows.keep(to, source, order)
        self._positions = self._positions[order.to(self._device)]
        self.order = self.order[order]
        return order

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[list[States], torch.Tensor]:
        """Return keys and values of each layer, and the logits behind each of ``prompts``."""
        ids_BT, mask_BT = _left_padded(prompts, self._device)
        cache: Any = DynamicCache()
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        logits_BV = self._pass(ids_BT, positions_BT, attention_mask=mask_BT, past_key_values=cache)
        return [(layer.keys, layer.values) for layer in cache.layers], logits_BV

    def _pass(
        self, ids_BT: torch.Tensor, positions_BT: torch.Tensor, **inputs: Any
    ) -> torch.Tensor:
        """Return the logits behind the last token of each row, [B, V]."""
        found = self._model(
            input_ids=ids_BT, position_ids=positions_BT, use_cache=True, logits_to_keep=1, **inputs
        )
        advance()
        return found.logits[:, -1]


def _passes(prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Yield from where to where ``prompts``, longest first, are computed in one pass."""
    start = 0
    while start < len(prompts):
        stop = start + max(1, PREFILL_TOKENS // len(prompts[start]))
        yield start, min(stop, len(prompts))
        start = stop


def _left_padded(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask, int64 [B, longest]: prompts end together, so new tokens line up."""
    rows = [torch.tensor(list(prompt)) for prompt in prompts]
    pad = partial(pad_sequence, batch_first=True, padding_side="left")
    return pad(rows).to(device), pad([torch.ones_like(row) for row in rows]).to(device)

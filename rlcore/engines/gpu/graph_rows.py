"""Rows of a packed decoder on a GPU: a step is recorded once and replayed.

A step is hundreds of small operations, and launching them one by one from Python takes several
times as long as computing them. A CUDA graph launches them at once, at fixed addresses and in fixed
shapes. So what changes from step to step is data: the column of the new tokens, which columns are
empty, which rows are there. Rows that left are computed until so many have left that new shapes
pay.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from rlcore.engines.gpu.packed_model import PackedModel
from rlcore.engines.shared_prompts import KeptLayer, SharedPrompts, Slots, States

COLUMNS = 256  # by which the rows' own tokens grow: each time a step is recorded again


@dataclass(slots=True)
class _Columns:
    """``newest``: int64 [1], the column of the newest tokens; ``empty``: bool [columns], those
    behind it."""

    newest: torch.Tensor
    empty: torch.Tensor


class _Slots(Slots):
    """Indices that keep their place and number: a row that left has the first slot."""

    def _index(self) -> None:
        to_slots, to_rows = self._indices()
        if self.to_slots is None or self.to_rows is None:
            self.to_slots, self.to_rows = to_slots.to(self._device), to_rows.to(self._device)
            return
        self.to_slots.copy_(to_slots)
        self.to_rows.copy_(pad(to_rows, (0, len(self.to_rows) - len(to_rows))))


class _Layer(KeptLayer):
    """Keys and values in a fixed number of columns."""

    def __init__(self, passes: Sequence[States], rows: int, room: int, columns: _Columns) -> None:
        super().__init__(passes, rows, room)
        self._own.zero_()  # what an empty column holds is multiplied by a weight of 0
        self._columns = columns

    def append(self, keys_values: torch.Tensor) -> None:
        by_kind = keys_values.unflatten(1, (2, self._heads)).transpose(0, 1).unsqueeze(3)
        self._own.index_copy_(3, self._columns.newest, by_kind.to(self._own.dtype))

    def attend(
        self, queries: torch.Tensor, slots: Slots, hidden: torch.Tensor | None
    ) -> torch.Tensor:
        own_keys, own_values = self._own.flatten(1, 2)
        own_scores = torch.bmm(queries, own_keys.transpose(1, 2))
        own_scores.masked_fill_(self._columns.empty, -torch.inf)
        return self._read(queries, slots, hidden, own_scores, own_values)

    def move(self, to: torch.Tensor, source: torch.Tensor) -> None:
        self._own[:, to] = self._own[:, source]

    def resize(self, rows: int, more: int) -> None:
        """Keep the first ``rows`` rows, with ``more`` columns."""
        self._own = pad(self._own[:, :rows], (0, 0, 0, more)).contiguous()


class GraphRows(SharedPrompts):
    """``rlcore.engines.row_decoder.Rows`` that a ``PackedModel`` continues, whose shapes are fixed
    from step to step; on CUDA a step is a graph.

    The logits that ``step`` returns are overwritten by the next.
    """

    def __init__(
        self,
        model: PackedModel,
        passes: Sequence[Sequence[States]],
        prompt_of: torch.Tensor,
        lengths: Sequence[int],
        room: int,
    ) -> None:
        """Arguments as ``rlcore.engines.row_decoder.SharedRows``'s."""
        device, rows = model.embedding.device, len(prompt_of)
        self._model = model
        self._columns = _Columns(
            torch.zeros(1, dtype=torch.long, device=device),
            torch.ones(room, dtype=torch.bool, device=device),
        )
        self._fixed = [
            _Layer(states, rows, room, self._columns) for states in zip(*passes, strict=True)
        ]
        self._used = 0  # columns
        self._given = torch.zeros(2, rows, dtype=torch.long, device=device)  # tokens, positions
        super().__init__(self._fixed, prompt_of, lengths, model.shared, device)
        self._forget()

    def step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Append a token to each row; return the logits behind it, [B, V]."""
        room, rows = len(self._columns.empty), len(tokens)
        if self._used == room:
            self._resize(self._given.shape[1], COLUMNS)
        self._given[0, :rows], self._given[1, :rows] = tokens, positions
        self._columns.newest.fill_(self._used)
        self._columns.empty[self._used] = False
        self._used += 1
        if self._graph is not None:
            self._graph.replay()
        elif self._given.is_cuda and self._tried:
            self._record()
        else:  # what is computed for the first time may allocate and choose its kernels
            self._logits, self._tried = self._model.step(self, *self._given), True
        return self._logits[:rows]

    def _record(self) -> None:
        """Record a step and make it."""
        self._graph = torch.cuda.CUDAGraph()
        # Other threads of this process, a learner's say, go on meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._logits = self._model.step(self, *self._given)
        self._graph.replay()

    def _resize(self, rows: int, more: int) -> None:
        self._given = self._given[:, :rows].contiguous()
        self._columns.empty = pad(self._columns.empty, (0, more), value=True)
        for layer in self._fixed:
            layer.resize(rows, more)
        self._forget()

    def _forget(self) -> None:
        self._graph: torch.cuda.CUDAGraph | None = None
        self._tried = False

    def _new_slots(self) -> Slots:
        if len(self._prompt_of) < self._given.shape[1]:
            self._resize(len(self._prompt_of), 0)
        return _Slots(self._prompt_of, self._heads, self._device)

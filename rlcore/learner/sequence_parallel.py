"""Ulysses sequence parallelism (arXiv 2309.14509): the ranks of a group hold the same rows and
compute a part of their tokens each; within attention, all tokens of a part of the heads.

What a token's layers keep for backward is then divided by the ranks of the group, so that sequences
fit that no rank could hold alone. The exchange of tokens for heads is DeepSpeed's (ALST, arXiv
2506.13996).
"""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rlcore.learner.attention import FLASH, SDPA, divides_heads, uneven_heads
from rlcore.learner.model import TokenModel
from rlcore.learner.packing_check import FLOORS, example_batch, models_of, read_outputs
from rlcore.learner.spec import LearnerSpec
from rlcore.models.architectures import takes_masks
from rlcore.models.packing import MicroBatch
from schemas.errors import UserError

DIVIDED = "_divided_by"  # attribute of a module whose attention is divided


class SequenceParallel:
    """This rank's part of the tokens of a group of ``size`` ranks, consecutive in ``world_size``.

    Collective: every rank builds it, at the same point, and the ranks of a group make the same
    passes. ``attention``: transformers' name of the kernel that each rank calls with its heads.
    """

    def __init__(self, size: int, rank: int, world_size: int, attention: str) -> None:
        groups = [
            dist.new_group(list(range(first, first + size))) for first in range(0, world_size, size)
        ]
        self._group: Any = groups[rank // size]
        self._size, self._place = size, rank % size
        self._attention = attention
        self._exchanges: dict[tuple[int, ...], Any] = {}

    def divide(self, model: TokenModel, spec: LearnerSpec, device: str) -> None:
        """Divide the attention of ``model``, and of the reference that it holds, from now on.

        Raises ``UserError`` on every rank for an architecture whose outputs then differ, by more
        than rounding explains, from those of a rank that has all tokens.
        """
        batch = example_batch(model)
        for each in models_of(model):
            self._require(each, spec)
            whole = read_outputs(each, batch, device)
            _install(self._attention)
            for module in each.lm.modules():
                setattr(module, DIVIDED, self)
            inputs, own = self.cut(batch)
            mine = torch.from_numpy(read_outputs(each, inputs, device)).to(device)
            own = torch.from_numpy(own).to(device)
            found = self.whole(mine, own, len(whole)).cpu().numpy()
            scale = max(1.0, float(np.abs(whole).max()))
            gap = float(np.abs(found - whole).mean())
            if not gap <= FLOORS[spec.dtype] * scale:
                raise UserError(
                    f"hardware.learner.sequence_parallel = {self._size} changes the outputs of"
                    f" architecture {type(each.lm).__name__} by {gap:.2g} on average; set it to 1"
                )

    def _require(self, model: TokenModel, spec: LearnerSpec) -> None:
        config = model.lm.config.get_text_config()
        heads = config.num_attention_heads
        shared = getattr(config, "num_key_value_heads", None) or heads
        if not divides_heads(self._size, heads, shared):
            raise UserError(uneven_heads(self._size, heads, shared, f"'{spec.model_dir}'"))
        if self._attention != FLASH and not (self._attention == SDPA and takes_masks(model.lm)):
            raise UserError(
                f"hardware.learner.sequence_parallel = {self._size} needs an architecture whose"
                f" layers all attend to every earlier token, and {type(model.lm).__name__} does"
                " not; set it to 1"
            )

    def cut(self, batch: MicroBatch) -> tuple[MicroBatch, np.ndarray]:
        """Return this rank's columns of ``batch``, and which of its targets lie there [own].

        ``documents`` and ``continued`` stay those of whole rows, to which each rank attends; flash
        attention finds documents by the positions alone.
        """
        width = batch.input_ids.shape[1]
        part = -(-width // self._size)
        padding = part * self._size - width
        columns = slice(self._place * part, (self._place + 1) * part)
        row, column = np.divmod(batch.predictors, width)
        own = np.flatnonzero((column >= columns.start) & (column < columns.stop))
        positions = np.pad(batch.position_ids, ((0, 0), (0, padding)))
        documents = batch.documents
        if documents is None:
            # A document begins where positions restart; the padding is one more.
            documents = np.cumsum(positions == 0, axis=1, dtype=np.int32)
        else:
            documents = np.pad(documents, ((0, 0), (0, padding)), constant_values=-1)
        continued = documents
        if batch.continued is not None:
            continued = np.pad(batch.continued, ((0, 0), (0, padding)), constant_values=-1)
        flash = self._attention == FLASH
        found = MicroBatch(
            input_ids=np.pad(batch.input_ids, ((0, 0), (0, padding)))[:, columns],
            position_ids=positions[:, columns],
            predictors=row[own] * part + column[own] - columns.start,
            target_ids=batch.target_ids[own],
            sequences=batch.sequences[own],
            sources=batch.sources[own],
            num_tokens=batch.num_tokens,
            documents=None if flash else documents,
            continued=None if flash else continued,
        )
        return found, own

    def whole(self, mine: torch.Tensor, own: torch.Tensor, count: int) -> torch.Tensor:
        """Return [count] of all ranks of the group, from ``mine`` [own], of the targets ``own``.

        Each rank computes the whole loss from it, and its backward pass hands each rank the
        gradient of its own targets: summed over the ranks, that is the gradient.
        """
        return _Whole.apply(mine, own, count, self._group)

    def attend(self, attention: Any, module: Any, query: Any, *inputs: Any, **named: Any) -> Any:
        """Call ``attention`` with all tokens of this rank's heads; arguments are transformers'."""
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

        rows, heads, _, width = query.shape
        shape = (rows, heads, inputs[0].shape[1], width)
        if self._attention != FLASH:  # not every architecture hands them on, and the mask says all
            named["position_ids"] = torch.zeros(
                (rows, query.shape[2]), dtype=torch.long, device=query.device
            )
        if shape not in self._exchanges:
            self._exchanges[shape] = UlyssesSPAttentionHF(
                attn=attention,
                batch_size=rows,
                attn_head_count=heads,
                attn_head_size=width,
                kv_head_count=shape[2],
                num_hidden_layers=1,
                process_group=self._group,
                seq_length_is_variable=True,
            )
        found, weights = self._exchanges[shape](module, query, *inputs, **named)
        return found.unflatten(-1, (heads, -1)), weights


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, mine: torch.Tensor, own: torch.Tensor, count: int, group: Any
    ) -> torch.Tensor:
        ctx.save_for_backward(own)
        found = mine.new_zeros(count)
        found[own] = mine
        dist.all_reduce(found, group=group)  # the others add zeros here
        return found

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None]:
        return gradient[ctx.saved_tensors[0]], None, None, None


def _install(name: str) -> None:
    """Let transformers' attention ``name`` of this process ask each module whether it is divided;
    the others are computed as before."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    attention: Any = ALL_ATTENTION_FUNCTIONS[name]
    if hasattr(attention, DIVIDED):
        return

    def attend(module: Any, query: Any, *inputs: Any, **named: Any) -> Any:
        parallel = getattr(module, DIVIDED, None)
        if parallel is None:
            return attention(module, query, *inputs, **named)
        return parallel.attend(attention, module, query, *inputs, **named)

    setattr(attend, DIVIDED, None)
    ALL_ATTENTION_FUNCTIONS.register(name, attend)

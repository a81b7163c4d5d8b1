"""Where DeepSpeed has a rank's part of each parameter and of its moments: written and restored.

DeepSpeed's own checkpoints are pickles: reading one can run code of whoever wrote it, and only the
layout that wrote one can continue with it. Ours: ``rlcore.learner.canonical``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from rlcore.learner.canonical import MOMENTS, WEIGHTS, SavedState, role_file
from schemas.errors import UserError


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of one parameter: ``numel`` elements from ``start`` of the flattened whole.

    They are at ``offset`` of ``flat``, the fp32 tensor that the base optimizer steps.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    numel: int
    flat: torch.Tensor
    offset: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the part of ``tensor``, which has the layout of ``flat``, as a view."""
        return tensor.data.view(-1).narrow(0, self.offset, self.numel)


def shards(engine: Any, zero_stage: int) -> Iterator[Shard]:
    """Yield this rank's shards of a DeepSpeed engine; parameters without a part on this rank are
    left out.

    ZeRO 0 steps each parameter itself, 1 and 2 one flat tensor whose parts DeepSpeed maps to the
    parameters, 3 flat tensors of equal parts of each parameter, padded at the end.
    """
    zero = engine.optimizer
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            continue
        if zero_stage == 0:
            yield Shard(name, tuple(parameter.shape), 0, parameter.numel(), parameter, 0)
        elif zero_stage == 3:
            group, offset, padded = zero.grad_position[zero.get_param_id(parameter)]
            start = torch.distributed.get_rank() * padded
            numel = min(padded, parameter.ds_numel - start)
            if numel > 0:
                flat = zero.fp32_partitioned_groups_flat[group]
                yield Shard(name, tuple(parameter.ds_shape), start, numel, flat, offset)
        elif (part := parameter._hp_mapping) is not None:
            here, whole = part.get_hp_fragment_address(), part.lp_fragment_address
            # DeepSpeed has a separate optimizer class for ZeRO 1 in bfloat16.
            own = hasattr(zero, "fp32_groups_flat_partition")
            groups = (
                zero.fp32_groups_flat_partition if own else zero.single_partition_of_fp32_groups
            )
            flat = groups[part.param_group_index]
            yield Shard(name, tuple(parameter.shape), whole.start, here.numel, flat, here.start)


def write_shards(engine: Any, zero_stage: int, stem: Path) -> dict[str, Any]:
    """Write the files ``<stem>.<role>.safetensors``; return the manifest's entry per parameter.

    Each element is written by one rank: without ZeRO, where all have it, by the first.
    """
    state = _base(engine).state
    held: dict[str, dict[str, torch.Tensor]] = {role: {} for role in (WEIGHTS, *MOMENTS)}
    entries = {}
    repeated = zero_stage == 0 and torch.distributed.get_rank() > 0
    for shard in () if repeated else shards(engine, zero_stage):
        moments = state.get(shard.flat, {})
        held[WEIGHTS][shard.name] = shard.of(shard.flat).cpu()
        for role in MOMENTS if moments else ():
            held[role][shard.name] = shard.of(moments[role]).cpu()
        step = int(moments["step"]) if moments else None
        place = {"shape": list(shard.shape), "start": shard.start, "numel": shard.numel}
        entries[shard.name] = {**place, "step": step}
    for role, tensors in held.items():
        save_file(tensors, role_file(stem, role))
    return entries


def read_shards(engine: Any, zero_stage: int, saved: SavedState) -> None:
    """Restore this rank's part of ``saved``, bit for bit, whatever ranks and stage wrote it.

    Raises UserError when a file is missing or damaged, when the state has other parameters than the
    model, and when parameters that are stepped as one here were stepped a different number of
    times.
    """
    base = _base(engine)
    model = {
        name: tuple(getattr(parameter, "ds_shape", parameter.shape))
        for name, parameter in engine.module.named_parameters()
        if parameter.requires_grad
    }
    if {name: each.shape for name, each in saved.parameters.items()} != model:
        raise UserError(
            f"checkpoint {saved.directory} holds other parameters than this model; restart the"
            " stage"
        )
    parts = list(shards(engine, zero_stage))
    steps = _steps(saved, parts)
    for shard in parts:
        shard.of(shard.flat).copy_(saved.read(shard.name, WEIGHTS, shard.start, shard.numel))
        step = steps[shard.flat]
        if step is None:  # saved before the first step
            base.state.pop(shard.flat, None)
            continue
        moments = base.state[shard.flat]
        if not moments:
            moments["step"] = torch.zeros((), dtype=torch.float32, device=shard.flat.device)
            moments.update({role: torch.zeros_like(shard.flat.data) for role in MOMENTS})
        for role in MOMENTS:
            shard.of(moments[role]).copy_(
                saved.read(shard.name, role, shard.start, shard.numel)
                if saved.parameters[shard.name].step is not None
                else torch.zeros(shard.numel)
            )
        moments["step"].fill_(step)
    _refresh_model(engine.optimizer, zero_stage)


def _steps(saved: SavedState, parts: Sequence[Shard]) -> dict[torch.Tensor, int | None]:
    """Return how often each flat tensor was stepped: as often as its parameters, but for those that
    never had a gradient, whose moments are zero."""
    steps: dict[torch.Tensor, int | None] = {}
    first: dict[torch.Tensor, str] = {}
    for shard in parts:
        step, known = saved.parameters[shard.name].step, steps.get(shard.flat)
        if None not in (step, known) and step != known:
            raise UserError(
                f"checkpoint {saved.directory} has {first[shard.flat]} after {known} steps and"
                f" {shard.name} after {step}, which ZeRO steps as one; set"
                " hardware.learner.zero_stage to 0"
            )
        steps[shard.flat] = known if step is None else step
        if known is None:
            first[shard.flat] = shard.name
    return steps


def _base(engine: Any) -> torch.optim.Optimizer:
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def _refresh_model(zero: Any, zero_stage: int) -> None:
    """Copy the weights of the fp32 shards into the model, on all ranks."""
    if zero_stage in (1, 2):
        zero.update_lp_params()
    elif zero_stage == 3:
        zero.checkpoint_event_prologue()
        for exact, held, parts in zip(
            zero.fp32_partitioned_groups_flat,
            zero.fp16_partitioned_groups_flat,
            zero.fp16_partitioned_groups,
            strict=True,
        ):
            held.data.copy_(exact.data)
            for part, value in zip(parts, zero.unflatten(held, parts), strict=True):
                part.data = value.data
        zero.checkpoint_event_epilogue()

"""The optimizer state of a rank, by parameter, and its files.

DeepSpeed's own checkpoints are pickles: reading one can run code of whoever wrote it. Here each
role (fp32 weights, first and second moments of AdamW) is one safetensors file per rank, named by
parameter; JSON says which part of the flattened parameter a rank holds and after how many steps.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from schemas.errors import UserError

WEIGHTS = "weights"
MOMENTS = ("exp_avg", "exp_avg_sq")


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

    def place(self) -> dict[str, Any]:
        """Return its entry in the manifest."""
        return {"shape": list(self.shape), "start": self.start, "numel": self.numel}


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
    """Write the files ``<stem>.<role>.safetensors``; return the manifest's entry per parameter."""
    state = _base(engine).state
    held: dict[str, dict[str, torch.Tensor]] = {role: {} for role in (WEIGHTS, *MOMENTS)}
    entries = {}
    for shard in shards(engine, zero_stage):
        moments = state.get(shard.flat, {})
        held[WEIGHTS][shard.name] = shard.of(shard.flat).cpu()
        for role in MOMENTS if moments else ():
            held[role][shard.name] = shard.of(moments[role]).cpu()
        entries[shard.name] = {
            **shard.place(),
            "step": int(moments["step"]) if moments else None,
        }
    for role, tensors in held.items():
        save_file(tensors, _file(stem, role))
    return entries


def read_shards(engine: Any, zero_stage: int, stem: Path, entries: dict[str, Any]) -> None:
    """Restore, bit for bit, the files of ``write_shards`` for the same model, ranks and stage.

    Raises UserError when a file is missing or damaged, or holds other parameters.
    """
    base = _base(engine)
    parts = {shard.name: shard for shard in shards(engine, zero_stage)}
    stepped = {name for name, entry in entries.items() if entry["step"] is not None}
    held = {role: read_tensors(_file(stem, role)) for role in (WEIGHTS, *MOMENTS)}
    places = {name: {**entry, "step": None} for name, entry in entries.items()}
    expected = {name: {**shard.place(), "step": None} for name, shard in parts.items()}
    whole = all(
        {name: tuple(tensor.shape) for name, tensor in held[role].items()}
        == {name: (parts[name].numel,) for name in (parts if role == WEIGHTS else stepped)}
        for role in (held if places == expected else ())
    )
    if places != expected or not whole:
        raise UserError(
            f"checkpoint {stem.parent} holds other parameters than this model; restart the stage"
        )
    for name, shard in parts.items():
        shard.of(shard.flat).copy_(held[WEIGHTS][name])
        step = entries[name]["step"]
        if step is None:  # saved before the first step
            base.state.pop(shard.flat, None)
            continue
        moments = base.state[shard.flat]
        if not moments:
            moments.update(_no_moments(base, shard.flat))
        for role in MOMENTS:
            shard.of(moments[role]).copy_(held[role][name])
        if isinstance(moments["step"], torch.Tensor):
            moments["step"].fill_(step)
        else:
            moments["step"] = step
    _refresh_model(engine.optimizer, zero_stage)


def _base(engine: Any) -> torch.optim.Optimizer:
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def _no_moments(base: torch.optim.Optimizer, flat: torch.Tensor) -> dict[str, Any]:
    """Return empty AdamW state, as its first step would create it."""
    fused = bool(base.defaults.get("fused"))  # torch's own optimizer; DeepSpeed's counts in an int
    step = torch.zeros((), dtype=torch.float32, device=flat.device) if fused else 0
    return {"step": step, **{role: torch.zeros_like(flat.data) for role in MOMENTS}}


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


def _file(stem: Path, role: str) -> Path:
    return stem.with_name(f"{stem.name}.{role}.safetensors")


def read_manifest(path: Path) -> dict[str, Any]:
    """Return a rank's manifest. Raises UserError when it is damaged."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        missing = {"layout", "version", "last", "parameters"} - manifest.keys()
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except (ValueError, AttributeError) as error:
        raise _damaged(path, error) from error
    return manifest


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file. Raises UserError when it is missing or damaged."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path} is missing or damaged ({error}); take another checkpoint, or restart the stage"
    )

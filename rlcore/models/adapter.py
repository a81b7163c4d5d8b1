"""Low-rank adapters (LoRA, arXiv 2106.09685) over a frozen model, by peft.

Engines, digests, exports and evaluations see the merged model, ``W + s·B·A``, which is computed
from the untouched ``W`` each time: what is added is never subtracted, so that the base keeps its
bits (in bfloat16 ``(W + D) - D`` is not ``W``).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.models.files import read_json, write_json
from rlcore.models.weight_digest import canonical_names
from rlcore.models.weight_names import empty_model
from schemas.errors import UserError, did_you_mean
from schemas.model import Adapter

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

ADAPTER_FOLDER = "adapter"  # of an artifact, beside the merged model
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
NAME = "default"  # peft's, of the one adapter that a learner trains
PREFIX = "base_model.model."  # of names in peft's files
BASE_LAYER = ".base_layer."
OF_EXPERTS = ("gate_proj", "up_proj", "down_proj", "gate", "w1", "w2", "w3")
FACTORS = ("lora_A", "lora_B")
NO_BITSANDBYTES = (
    "model.adapter.base = 'nf4' needs bitsandbytes; install the extra quant, or set base to full"
)
OF_CODES = ".weight."  # in names of the scales and tables of a quantised weight
SCORE = "score"  # the head of a value model, trained in full


def add_adapter(lm: "PreTrainedModel", adapter: Adapter, device: str = "cpu") -> None:
    """Freeze ``lm`` and put ``adapter`` on it: A drawn by torch's generator, B zero, so that the
    model computes what it did, bit for bit. What is quantised goes to ``device`` layer by layer,
    which may have no room for the rest of ``lm`` in full.

    Raises UserError where the model has no linear layer of a name in ``adapter.targets``, of which
    its output head is none.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    targets = _targets(lm, adapter.targets)
    lm.requires_grad_(False)
    if adapter.base == "nf4":
        _quantise(lm, device)
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,  # pyright: ignore[reportArgumentType]
        target_modules=targets,
        use_rslora=adapter.rslora,
        lora_dropout=0.0,
        bias="none",
    )
    try:
        inject_adapter_in_model(config, lm, adapter_name=NAME)
    except ValueError as error:  # peft knows layers that are linear, and used otherwise
        raise UserError(
            f"model.adapter.targets = {adapter.targets!r} does not fit {type(lm).__name__}:"
            f" {str(error).partition(chr(10))[0]}; name linear layers of its attention and MLP"
        ) from error
    adapted = {name for name, layer in lm.named_modules() if isinstance(layer, BaseTunerLayer)}
    if adapted != set(targets):  # what is not merged would not reach the engines
        raise UserError(
            f"model.adapter.targets = {adapter.targets!r}: for {type(lm).__name__} peft adapts"
            f" {', '.join(sorted(adapted - set(targets))[:3])} instead; name other layers, such as"
            " those of the attention"
        )
    head = dict(lm.named_children()).get(SCORE)
    if head is not None:
        head.requires_grad_(True)  # a value model's, which is new


def check_adapter(adapter: Adapter | None, directory: Path) -> None:
    """Raise UserError where ``adapter`` cannot be put on the model of ``directory``, or needs what
    is not installed; no weight is read."""
    if adapter is None:
        return
    if adapter.base == "nf4" and find_spec("bitsandbytes") is None:
        raise UserError(NO_BITSANDBYTES)
    add_adapter(empty_model(directory), adapter.model_copy(update={"base": "full"}))


def _targets(lm: "PreTrainedModel", wanted: str | tuple[str, ...]) -> list[str]:
    """Return the full names of the linear layers that are ``wanted``, of which the output head is
    none: log-probs are taken from its weight, and tied it embeds too."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head = lm.get_output_embeddings()
    layers = {
        name: name.rpartition(".")[2]
        for name, module in lm.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head and name != SCORE
    }
    kinds = sorted(set(layers.values()))
    for target in () if isinstance(wanted, str) else wanted:
        if target not in kinds:
            raise UserError(
                f"model.adapter.targets = '{target}' is no linear layer of {type(lm).__name__} but"
                f" for its output head; it has {', '.join(kinds)}{did_you_mean(target, kinds)}"
            )
    if not isinstance(wanted, str):
        return [name for name, kind in layers.items() if kind in wanted]
    # peft takes these for the experts that one tensor holds, which is not merged.
    fused = any(name.endswith(".experts") for name, _ in lm.named_modules())
    left_out = OF_EXPERTS if fused else ()
    return [name for name, kind in layers.items() if kind not in left_out]


def _quantise(lm: "PreTrainedModel", device: str) -> None:
    """Hold the linear layers of ``lm`` but its head in nf4 with doubly quantised scales, as they
    are now: a layer computes with what that decodes to, in the dtype that it had."""
    from torch import nn

    try:
        layers: Any = import_module("bitsandbytes.nn")
    except ImportError as error:
        raise UserError(NO_BITSANDBYTES) from error
    head = lm.get_output_embeddings()
    for name, layer in list(lm.named_modules()):
        if type(layer) is not nn.Linear or layer is head:
            continue
        weight, sizes = layer.weight, (layer.in_features, layer.out_features)
        held = layers.Linear4bit(
            *sizes, layer.bias is not None, weight.dtype, quant_type="nf4", device="meta"
        )
        codes = layers.Params4bit(weight.data, requires_grad=False, quant_type="nf4")
        held.weight, held.bias = codes.to(device), layer.bias
        lm.set_submodule(name, held)
    vars(lm)["is_loaded_in_4bit"] = True  # peft asks


def _plain(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return what a layer computes with: ``tensor``, or what its codes stand for."""
    state = getattr(tensor, "quant_state", None)
    if state is None:
        return tensor.detach()
    return import_module("bitsandbytes.functional").dequantize_4bit(tensor.data, state)


def merged_state(lm: "PreTrainedModel") -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield the canonical state, in the names of ``lm`` without an adapter, each tensor merged, in
    its dtype, from the base and its factors."""
    import torch

    tensors = lm.state_dict(keep_vars=True)
    for name in canonical_names(lm):
        if any(f".{factor}." in name for factor in FACTORS) or OF_CODES in name:
            continue
        tensor, layer = _plain(tensors[name]), name.rpartition(BASE_LAYER)
        if layer[1] and layer[2] == "weight":
            with torch.no_grad():
                delta = lm.get_submodule(layer[0]).get_delta_weight(NAME)  # pyright: ignore[reportCallIssue]
                tensor = (tensor.float() + delta.float()).to(tensor.dtype)
        yield name.replace(BASE_LAYER, "."), tensor


@contextmanager
def adapter_off(lm: "PreTrainedModel") -> Iterator[None]:
    """Let ``lm`` be the model without its adapter in this context, without gradients.

    peft's own switch also freezes the factors, and so would drop the gradient hooks of a step that
    is under way.
    """
    import torch
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers: list[Any] = [module for module in lm.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer._disable_adapters = True
    try:
        with torch.no_grad():
            yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def write_adapter(lm: "PreTrainedModel", adapter: Adapter, target: Path, base: str) -> None:
    """Write the adapter of ``lm`` into the directory ``target`` in peft's form; ``base``: what it
    is an adapter of, for who loads it."""
    state = {
        f"{PREFIX}{name.replace(f'.{NAME}.', '.')}": tensor.detach()
        for name, tensor in lm.state_dict().items()
        if any(f".{factor}." in name for factor in FACTORS)
    }
    _write(target, state, rank=adapter.rank, scale=adapter.scale, base=base)


def compose(adapters: list[Path], target: Path, base: str) -> None:
    """Write one adapter that does what ``adapters`` do one on top of the other: their factors side
    by side, of the sum of their ranks, exactly.

    ``B₁A₁ + B₂A₂ = [B₁ B₂][A₁; A₂]``; scales go into B.
    """
    import torch

    parts = [read_adapter(directory) for directory in adapters]
    state: dict[str, torch.Tensor] = {}
    for name in dict.fromkeys(name for factors, _ in parts for name in factors):
        axis = 0 if f".{FACTORS[0]}." in name else 1
        held = [
            factors[name].float() * (1.0 if axis == 0 else scale)
            for factors, scale in parts
            if name in factors
        ]
        state[name] = torch.cat(held, dim=axis).contiguous()
    ranks = {tensor.shape[0] for name, tensor in state.items() if f".{FACTORS[0]}." in name}
    if len(ranks) > 1:
        raise UserError(
            f"adapters {', '.join(map(str, adapters))} have other targets; export apart"
        )
    (rank,) = ranks
    _write(target, state, rank=rank, scale=1.0, base=base)


def adapter_base_of(directory: Path) -> str | None:
    """Return what the adapter in ``directory`` is for, None where there is none."""
    file = directory / CONFIG_FILE
    if not file.is_file():
        return None
    return read_json(file)["base_model_name_or_path"]


def read_adapter(directory: Path) -> "tuple[dict[str, torch.Tensor], float]":
    """Return the factors of an adapter in peft's form, by name in the file, and its scale."""
    from safetensors.torch import load_file

    config = read_json(directory / CONFIG_FILE)
    rank, alpha = config["r"], config["lora_alpha"]
    scale = alpha / rank**0.5 if config.get("use_rslora") else alpha / rank
    return load_file(directory / WEIGHTS_FILE), scale


def _write(
    target: Path, state: "Mapping[str, torch.Tensor]", *, rank: int, scale: float, base: str
) -> None:
    from safetensors.torch import save_file

    target.mkdir(parents=True)
    modules = sorted({name.removeprefix(PREFIX).rpartition(".lora_")[0] for name in state})
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
    }
    write_json(target / CONFIG_FILE, config, sort_keys=True)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, target / WEIGHTS_FILE, metadata={"format": "pt"})

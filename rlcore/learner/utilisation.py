"""How many floating-point operations a training pass needs, the most that a device can compute,
and the memory that a process has held."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """``parameters``: that each token is multiplied by. ``attention_width``: layers x heads x size
    of a head, 0 where the configuration does not say."""

    parameters: int
    attention_width: int

    def flops(self, tokens: int, squared_lengths: int) -> float:
        """Return the FLOPs of forward and backward over sequences of ``tokens`` tokens together,
        whose squared lengths add up to ``squared_lengths``.

        ``6·N·tokens + 6·W·sum(length²)``: a multiply-add forward and two backward per parameter
        (PaLM, arXiv 2204.02311, appendix B), and half of the attention matrix, which is causal.
        Recomputed and padded work is none of it.
        """
        return 6.0 * self.parameters * tokens + 6.0 * self.attention_width * squared_lengths


def training_cost(model: "PreTrainedModel") -> TrainingCost:
    """Return what a token costs ``model``, whose weights are whole (before ZeRO-3 splits them).

    A matrix below an adapter has no gradient, and so two multiply-adds instead of three.

    Matrices count, vectors do not; an embedding counts where it is the output head too. Of a layer
    of experts, which is one tensor of three dimensions, those that a token is sent to count.
    """
    config = model.config.get_text_config()
    chosen: int | None = getattr(config, "num_experts_per_tok", None)
    embedding = model.get_input_embeddings().weight
    is_head = getattr(model.get_output_embeddings(), "weight", None) is embedding
    parameters = 0.0
    for weight in model.parameters():
        if weight.dim() < 2 or (weight is embedding and not is_head):
            continue
        used = chosen / weight.shape[0] if chosen is not None and weight.dim() == 3 else 1.0
        codes = getattr(weight, "quant_state", None)
        count = weight.numel() if codes is None else codes.shape.numel()
        parameters += count * used * (1.0 if weight.requires_grad else 2 / 3)
    layers = getattr(config, "num_hidden_layers", 0)
    heads = getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    return TrainingCost(int(parameters), layers * heads * size)


# Dense bf16 FLOP/s in the makers' data sheets, by the words that the device's name contains: an
# A10G and an RTX A4000 are no A10 and no A40, and cards for PCIe are slower than their like.
DATA_SHEETS = {
    "H200 NVL": 835.5e12,
    "H100 NVL": 835.5e12,
    "H100 PCIe": 756e12,
    "GB200": 2.5e15,
    "B200": 2.25e15,
    "MI300X": 1307e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100": 989e12,
    "H800": 989e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L20": 119.5e12,
    "H20": 148e12,
    "L4": 121e12,
    "A40": 149.7e12,
    "A10": 125e12,
}


def peak_flops(device: str) -> float | None:
    """Return the FLOP/s of "cpu" or "cuda": of a GPU the bf16 rate of its data sheet, None where
    its name is not listed, and for a CPU."""
    if device != "cuda":
        return None
    name = torch.cuda.get_device_name()
    words = set(re.findall(r"\w+", name))
    return next((rate for known, rate in DATA_SHEETS.items() if words >= {*known.split()}), None)


def peak_memory(device: str) -> int:
    """Return the most bytes that this process has held of the memory of ``device``, "cpu" or
    "cuda": resident pages, those of libraries included, or what torch has reserved on its GPU."""
    if device == "cuda":
        return torch.cuda.max_memory_reserved()
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kib) * 1024

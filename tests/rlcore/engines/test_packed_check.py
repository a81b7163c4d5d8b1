"""A packed decoder that computes something else than its model is found as the engine is built."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlcore.engines.packed_check import FURTHEST, LONGEST, prove
from rlcore.engines.packed_model import PackedModel
from rlcore.engines.types import NOISE
from schemas.errors import UserError
from tests.rlcore.engines.models import PACKED


def _noisy(kind: str, dtype: torch.dtype) -> tuple[Any, PackedModel]:
    """A model as a new engine has it."""
    model = PACKED[kind]().to(dtype)
    packed = PackedModel(model, LONGEST)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.requires_grad_(False).parameters():
        parameter.uniform_(-NOISE, NOISE, generator=generator)
    return model, packed


@pytest.mark.parametrize("dtype", FURTHEST)
@pytest.mark.parametrize("kind", PACKED)
def test_a_right_decoder_passes_and_keeps_its_bits(kind: str, dtype: torch.dtype) -> None:
    model, packed = _noisy(kind, dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    prove(model, packed)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def _layer(**changes: Callable[[Any], Any]) -> Callable[[PackedModel], None]:
    def change(packed: PackedModel) -> None:
        layer = packed.layers[0]
        new = {name: of(layer) for name, of in changes.items()}
        packed.layers[0] = replace(layer, **new)

    return change


def _angles(packed: PackedModel) -> None:
    packed.angles = packed.angles.roll(1, 0)


def _scaling(packed: PackedModel) -> None:
    packed.scaling *= 2


QWEN2, QWEN3 = "Qwen2, tied", "Qwen3, heads wider than hidden"
BIASED = "Llama, one head of keys, biases"
FAULTS: dict[str, tuple[str, Callable[[PackedModel], None]]] = {
    "no biases of the projections": (QWEN2, _layer(qkv_bias=lambda layer: None)),
    "no norm of queries and keys": (
        QWEN3,
        _layer(query_norm=lambda layer: None, key_norm=lambda layer: None),
    ),
    "norms swapped": (
        QWEN2,
        _layer(
            before_mlp=lambda layer: layer.before_attention,
            before_attention=lambda layer: layer.before_mlp,
        ),
    ),
    "gate for up": (QWEN2, _layer(gate_up=lambda layer: layer.gate_up.roll(48, 0))),
    "no bias behind attention": (BIASED, _layer(out_bias=lambda layer: None)),
    "no bias behind the MLP": (BIASED, _layer(down_bias=lambda layer: None)),
    "another scale of the scores": (QWEN3, _scaling),
    "a position too early": (QWEN2, _angles),
}
SMALL = {"a position too early"}  # as small as a rounding of bfloat16


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        *((fault, torch.float32) for fault in FAULTS),
        *((fault, torch.bfloat16) for fault in FAULTS if fault not in SMALL),
    ],
)
def test_another_computation_is_refused(fault: str, dtype: torch.dtype) -> None:
    """It would sample from another policy than the learner's, with the learner's digest."""
    kind, change = FAULTS[fault]
    model, packed = _noisy(kind, dtype)
    change(packed)
    sentence = r"decodes \w+ForCausalLM with logits .* infra/constraints"
    with pytest.raises(UserError, match=sentence):
        prove(model, packed)

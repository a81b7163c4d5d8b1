"""A decoder that computes something else than its model is found as the engine is built."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlcore.engines.gpu.packed_model import PackedModel
from rlcore.engines.transformers_engine import FURTHEST, LONGEST, is_right, shares_prompts
from rlcore.engines.types import NOISE
from schemas.errors import UserError
from tests.rlcore.engines.models import OTHERS, PACKED


def _noisy(kind: str, dtype: torch.dtype, *, packed: bool = True) -> tuple[Any, Any]:
    """A model as a new engine has it, and its packed form."""
    model = (PACKED | OTHERS)[kind]().to(dtype).eval()
    found = PackedModel(model, LONGEST) if packed else None
    generator = torch.Generator().manual_seed(0)
    for parameter in model.requires_grad_(False).parameters():
        parameter.uniform_(-NOISE, NOISE, generator=generator)
    return model, found


@pytest.mark.parametrize("dtype", FURTHEST)
@pytest.mark.parametrize("kind", PACKED)
def test_a_right_decoder_passes_and_keeps_its_bits(kind: str, dtype: torch.dtype) -> None:
    model, packed = _noisy(kind, dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert is_right(model, packed=packed)
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
    assert not is_right(model, packed=packed)


@pytest.mark.parametrize("dtype", FURTHEST)
@pytest.mark.parametrize("kind", [*PACKED, *OTHERS])
def test_prompts_are_shared_where_that_is_the_models_own_attention(
    kind: str, dtype: torch.dtype
) -> None:
    model, _ = _noisy(kind, dtype, packed=False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert shares_prompts(model) == (kind != "sliding window")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("kind", ["takes it and drops it", "takes no more"])
def test_a_model_whose_attention_cannot_be_told_keeps_each_rows_prompt(kind: str) -> None:
    """Its attention never sees which rows share; what it would read instead is found wrong."""
    model, _ = _noisy(QWEN2, torch.float32, packed=False)
    forward = type(model.model).forward

    def closed(continued: Any = None, **given: Any) -> Any:
        if continued is not None and kind == "takes no more":
            raise TypeError("forward() got an unexpected keyword argument 'continued'")
        return forward(model.model, **given)

    model.model.forward = closed
    assert not shares_prompts(model)
    assert model.config._attn_implementation == "sdpa"


def test_a_model_that_keys_do_not_continue_is_refused() -> None:
    """Another memory than keys and values, as recurrences have it."""
    model, _ = _noisy(QWEN2, torch.float32, packed=False)
    forward = type(model.model).forward

    def forgetful(**given: Any) -> Any:
        found = forward(model.model, **given)
        earlier = given["input_ids"].float().cumsum(-1) / 60.0
        found.last_hidden_state = found.last_hidden_state + earlier[..., None]
        return found

    model.model.forward = forgetful
    with pytest.raises(UserError, match=r"does not decode Qwen2ForCausalLM .* set it to vllm"):
        shares_prompts(model)

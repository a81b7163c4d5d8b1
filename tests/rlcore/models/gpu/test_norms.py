"""RMS norms in two operations are transformers', and other norms are left alone."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlcore.models.gpu.norms import speed_up_norms
from tests.devices import DEVICES

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig, 5),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, 5),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, 9),  # of each head's queries and keys too
}


def _model(kind: type[PreTrainedModel], config: type, **more: object) -> PreTrainedModel:
    torch.manual_seed(0)
    model = kind(config(**SIZES, **more))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, 1.0, 0.3)
    return model


def _trained_on(model: PreTrainedModel) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    ids = (torch.arange(60).view(3, 20) % 40).to(model.device)
    logits = model(input_ids=ids).logits
    model.zero_grad()
    logits.logsumexp(-1).sub(logits[..., 3]).mean().backward()
    return logits.detach(), {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_outputs_and_gradients_are_those_of_transformers(kind: str, device: str) -> None:
    cls, config, norms = KINDS[kind]
    model: Any = _model(cls, config)
    model.to(device)
    logits, gradients = _trained_on(model)
    assert speed_up_norms(model) == norms
    again, ours = _trained_on(model)
    torch.testing.assert_close(again, logits, rtol=1e-5, atol=1e-6)
    assert ours.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_bits_do_not_depend_on_whether_gradients_are_wanted() -> None:
    model = _model(Qwen3ForCausalLM, Qwen3Config)
    speed_up_norms(model)
    ids = torch.arange(20)[None]
    trained = model(input_ids=ids).logits
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, trained)


def test_a_norm_of_another_formula_stays() -> None:
    """Gemma multiplies by 1 + w."""
    model = _model(Gemma2ForCausalLM, Gemma2Config)
    before, _ = _trained_on(model)
    assert speed_up_norms(model) == 0
    assert torch.equal(_trained_on(model)[0], before)


def test_a_norm_of_other_types_stays() -> None:
    assert speed_up_norms(nn.Sequential(nn.LayerNorm(4), nn.RMSNorm(4))) == 0

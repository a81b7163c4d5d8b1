"""The gradient of RMS norms by one formula is autograd's, and other norms are left alone."""

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

from rlcore.models.norms import RMSNorm, give_norms_one_gradient

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
    ids = torch.arange(60).view(3, 20) % 40
    logits = model(input_ids=ids).logits
    model.zero_grad()
    logits.logsumexp(-1).sub(logits[..., 3]).mean().backward()
    return logits.detach(), {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_the_same_bits_and_gradients_the_same(kind: str) -> None:
    cls, config, norms = KINDS[kind]
    model = _model(cls, config)
    logits, gradients = _trained_on(model)
    assert give_norms_one_gradient(model) == norms
    again, ours = _trained_on(model)
    assert torch.equal(again, logits)
    assert ours.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_the_gradient_is_that_of_finite_differences() -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 2, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: RMSNorm.apply(x, w, 1e-5), (x, weight))


def test_a_norm_of_another_formula_stays() -> None:
    """Gemma multiplies by 1 + w."""
    model = _model(Gemma2ForCausalLM, Gemma2Config)
    before, _ = _trained_on(model)
    assert give_norms_one_gradient(model) == 0
    assert torch.equal(_trained_on(model)[0], before)


def test_a_norm_of_other_types_stays() -> None:
    assert give_norms_one_gradient(_model(Qwen2ForCausalLM, Qwen2Config).bfloat16()) == 0
    assert give_norms_one_gradient(nn.Sequential(nn.LayerNorm(4), nn.RMSNorm(4))) == 0

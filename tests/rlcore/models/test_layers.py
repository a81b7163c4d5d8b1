"""Layers by few operations are transformers' layers, and others are left alone."""

from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlcore.models import layers
from rlcore.models.layers import decoded, speed_up_layers

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
SERVED = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "llama, a head of its own size": (LlamaForCausalLM, LlamaConfig, {"head_dim": 12}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen2, tied": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen2, equal heads": (Qwen2ForCausalLM, Qwen2Config, {"num_key_value_heads": 4}),
    "value model": (Qwen2ForSequenceClassification, Qwen2Config, {"num_labels": 1}),
}
OTHERS = {
    "norms of heads": (Qwen3ForCausalLM, Qwen3Config, {}),
    "biases everywhere": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True}),
    "biases of the MLP": (LlamaForCausalLM, LlamaConfig, {"mlp_bias": True}),
    "another activation": (LlamaForCausalLM, LlamaConfig, {"hidden_act": "gelu"}),
    "a window": (MistralForCausalLM, MistralConfig, {"sliding_window": 8}),
}


def _model(of: tuple[Any, Any, dict[str, Any]]) -> Any:
    kind, config, more = of
    torch.manual_seed(0)
    model: PreTrainedModel = kind(config(**SIZES | more))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def _scored(model: Any) -> torch.Tensor:
    """Two rows of 15 tokens, of two packed documents each."""
    ids = torch.arange(1, 31).view(2, 15)
    places = torch.cat((torch.arange(9), torch.arange(6))).expand(2, 15)
    return model.base_model(input_ids=ids, position_ids=places, use_cache=False)[0]


def _trained_on(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    hidden = _scored(model)
    model.zero_grad()
    (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
    return hidden.detach(), {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("kind", SERVED)
def test_outputs_and_gradients_are_those_of_transformers(kind: str) -> None:
    model = _model(SERVED[kind])
    hidden, gradients = _trained_on(model)
    assert speed_up_layers(model) == 2
    again, ours = _trained_on(model)
    torch.testing.assert_close(again, hidden, rtol=1e-4, atol=1e-5)
    assert ours.keys() == gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6 * largest, msg=name)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_layers_stay(kind: str) -> None:
    model = _model(OTHERS[kind])
    before = _scored(model)
    assert speed_up_layers(model) == 0
    assert torch.equal(_scored(model), before)


def test_layers_of_other_types_stay() -> None:
    assert speed_up_layers(_model(SERVED["qwen2"]).bfloat16()) == 0


def test_a_layer_that_computes_something_else_stays() -> None:
    """As one of another version of transformers might."""
    model = _model(SERVED["llama"])
    layer = model.model.layers[1]
    plain = layer.forward
    layer.forward = lambda *inputs, **options: plain(*inputs, **options) * 1.01
    assert speed_up_layers(model) == 1


def test_bits_do_not_depend_on_whether_gradients_are_wanted() -> None:
    model = _model(SERVED["qwen2"])
    speed_up_layers(model)
    trained = _scored(model).detach()
    with torch.no_grad():
        assert torch.equal(_scored(model), trained)
    model.requires_grad_(False)
    assert torch.equal(_scored(model), trained)


PLACES = torch.tensor([3, 8, 8, 20, 29])  # a prompt's last token is read for each of its answers


def _read(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What is decoded at PLACES, and the gradients of a loss on it."""
    ids = torch.arange(1, 31).view(2, 15)
    places = torch.cat((torch.arange(9), torch.arange(6))).expand(2, 15)
    model.zero_grad()
    read = decoded(model.base_model, PLACES, input_ids=ids, position_ids=places)
    (read * torch.linspace(-1, 1, read.numel()).view_as(read)).sum().backward()
    return read.detach(), {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("kind", [*SERVED, "norms of heads"])
def test_reading_some_tokens_is_reading_all_and_leaving_out_the_rest(kind: str) -> None:
    model = _model((SERVED | OTHERS)[kind])
    whole = _scored(model).flatten(0, 1)[PLACES].detach()
    read, gradients = _read(model)
    assert torch.equal(read, whole)
    assert speed_up_layers(model) == (2 if kind in SERVED else 0)
    again, ours = _read(model)
    torch.testing.assert_close(again, whole, rtol=1e-4, atol=1e-5)
    assert ours.keys() == gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6 * largest, msg=name)


def test_the_last_layer_computes_what_is_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model(SERVED["qwen2"])
    speed_up_layers(model)
    rows: list[int] = []
    plain = layers.Outputs.forward

    def counted(ctx: Any, residual: torch.Tensor, *inputs: Any) -> torch.Tensor:
        rows.append(residual[..., 0].numel())
        return plain(ctx, residual, *inputs)

    monkeypatch.setattr(layers.Outputs, "forward", staticmethod(counted))
    _read(model)
    assert rows == [30, len(PLACES)]


def test_a_model_that_mixes_tokens_after_its_last_layer_reads_all() -> None:
    model = _model(SERVED["qwen2"])
    norm = model.base_model.norm
    plain = norm.forward
    norm.forward = lambda hidden: plain(hidden).cumsum(-2)
    whole = _scored(model).flatten(0, 1)[PLACES].detach()
    assert speed_up_layers(model) == 2
    torch.testing.assert_close(_read(model)[0], whole, rtol=1e-4, atol=1e-5)


def test_weights_that_are_loaded_later_are_used() -> None:
    model, other = (_model(SERVED["llama"]) for _ in range(2))
    speed_up_layers(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(_scored(model), _scored(other), rtol=1e-4, atol=1e-5)


def test_a_graph_is_walked_once() -> None:
    """Its second walk would read gates that the first has overwritten."""
    model = _model(SERVED["qwen2"])
    speed_up_layers(model)
    loss = _scored(model).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradient_checkpointing_changes_no_gradient() -> None:
    model = _model(SERVED["qwen2"])
    speed_up_layers(model)
    model.train()
    _, plain = _trained_on(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    _, checkpointed = _trained_on(model)
    for name, gradient in plain.items():
        assert torch.equal(checkpointed[name], gradient), name
    _, read = _read(model)
    model.gradient_checkpointing_disable()
    for name, gradient in _read(model)[1].items():
        assert torch.equal(read[name], gradient), name

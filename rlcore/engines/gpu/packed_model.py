"""Decoders of the Llama family, computed for one more token per row by few large operations.

The projections of queries, keys and values lie in one matrix, those of gate and up in another, and
the model's own parameters are views of them: what is loaded into the model is what is sampled from,
and there is no second copy. Axes: B rows, H query heads, K heads of keys and values, D dimensions
of a head, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from rlcore.engines.shared_prompts import SharedPrompts
from rlcore.models.tree_mask import takes_masks

# RMSNorm before attention and MLP, rotary positions on whole heads, SwiGLU; with or without biases,
# norms of queries and keys, a tied head.
CLASSES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
ACTIVATIONS = ("silu",)
ROTARY = ("default", "linear", "llama3", "yarn")  # their angles depend on the position alone


def packable(model: PreTrainedModel, device: str) -> bool:
    """Return whether ``PackedModel`` is to compute ``model`` on ``device``: a GPU, and class,
    activation and rotary kind in the tables above, and every layer attends to all earlier
    tokens."""
    return device == "cuda" and is_known(model)


def is_known(model: PreTrainedModel) -> bool:
    """Return whether ``PackedModel`` computes ``model``."""
    config: Any = model.config
    return (
        type(model) in CLASSES
        and config.hidden_act in ACTIVATIONS
        and config.rope_parameters.get("rope_type") in ROTARY
        and takes_masks(model)
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of one layer; a bias or norm that the model has not is None."""

    before_attention: torch.Tensor
    qkv: torch.Tensor  # [(H + 2 K) D, hidden]
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    before_mlp: torch.Tensor
    gate_up: torch.Tensor  # [2 inner, hidden]
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


class PackedModel:
    """The weights of a ``packable`` model, and its angles by position."""

    def __init__(self, model: Any, positions: int) -> None:
        """Let the parameters of ``model``, which must stay where it is, share the packed matrices;
        ``positions``: how many tokens a row can have."""
        config = model.config.get_text_config()
        attention = model.model.layers[0].self_attn
        self.dim: int = attention.head_dim
        self.heads: int = config.num_attention_heads
        self.shared: int = config.num_key_value_heads
        self.scaling: float = attention.scaling
        self.eps: float = config.rms_norm_eps
        self.layers = [self._packed(layer) for layer in model.model.layers]
        self.embedding: torch.Tensor = model.model.embed_tokens.weight
        self.norm: torch.Tensor = model.model.norm.weight
        self.head: torch.Tensor = model.lm_head.weight
        at_1T = torch.arange(positions, device=model.device)[None]
        cos, sin = model.model.rotary_emb(self.embedding, at_1T)
        # The model's rotation is x cos + (-second half, first half) sin.
        sin[..., : self.dim // 2] *= -1
        self.angles = torch.stack((cos[0], sin[0]), 1)  # [positions, 2, D]
        self._places = _places(model)

    def moved(self, model: Any) -> set[str]:
        """Return the parameters of ``model`` that are no longer where this reads them."""
        found = _places(model)
        return {name for name, place in self._places.items() if found.get(name) != place}

    def step(
        self, rows: SharedPrompts, tokens: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Append a token to each of ``rows``; return the logits behind it, [B, V]."""
        hidden = embedding(tokens, self.embedding)
        angles = self.angles.index_select(0, positions)
        cos, sin = angles[:, :1], angles[:, 1:]
        for layer, kept in zip(self.layers, rows.layers, strict=True):
            normed = self._normed(hidden, layer.before_attention)
            queries, keys_values = self._projected(layer, normed, cos, sin)
            kept.append(keys_values)
            attended = kept.attend(queries, rows.slots, rows.hidden)
            attended = attended.view(len(tokens), -1).to(hidden.dtype)
            hidden = _added(hidden, attended, layer.out, layer.out_bias)
            normed = self._normed(hidden, layer.before_mlp)
            gate, up = linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            hidden = _added(hidden, silu(gate).mul_(up), layer.down, layer.down_bias)
        return linear(self._normed(hidden, self.norm), self.head)

    def _projected(
        self, layer: _Layer, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scaled queries, float32 [B * K, G, D], and keys, then values, [B, 2 K, D]."""
        turned = self.heads + self.shared
        heads = linear(normed, layer.qkv, layer.qkv_bias).view(len(normed), -1, self.dim)
        plain = heads[:, :turned]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = plain.split((self.heads, self.shared), 1)
            queries, keys = (
                self._normed(queries, layer.query_norm),
                self._normed(keys, layer.key_norm),
            )
            plain = torch.cat((queries, keys), 1)
        rotated = (plain * cos).addcmul_(plain.roll(self.dim // 2, -1), sin)
        heads[:, self.heads : turned] = rotated[:, self.heads :]
        queries = rotated[:, : self.heads].float() * self.scaling
        return queries.view(-1, self.heads // self.shared, self.dim), heads[:, self.heads :]

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(rows, weight.shape, weight, self.eps)

    @staticmethod
    def _packed(layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
        gate_up = (mlp.gate_proj, mlp.up_proj)
        norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        query_norm, key_norm = (None if norm is None else norm.weight for norm in norms)
        return _Layer(
            layer.input_layernorm.weight,
            _share([each.weight for each in qkv]),
            _share([each.bias for each in qkv]),
            query_norm,
            key_norm,
            attention.o_proj.weight,
            attention.o_proj.bias,
            layer.post_attention_layernorm.weight,
            _share([each.weight for each in gate_up]),
            _share([each.bias for each in gate_up]),
            mlp.down_proj.weight,
            mlp.down_proj.bias,
        )


def _places(model: Any) -> dict[str, int]:
    return {name: parameter.data_ptr() for name, parameter in model.named_parameters()}


def _share(parameters: list[Any]) -> Any:
    """Return ``parameters`` in one tensor, row after row, of which they are views from now on."""
    if parameters[0] is None:
        return None
    packed = torch.cat([each.detach() for each in parameters])
    start = 0
    for each in parameters:
        each.data = packed[start : start + len(each)]
        start += len(each)
    return packed


def _added(
    to: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return ``to`` plus a linear layer of ``rows``."""
    added = torch.addmm(to, rows, weight.t())
    return added if bias is None else added.add_(bias)

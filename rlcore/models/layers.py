"""Layers of the Llama family by few large operations, with gradients written out.

A layer is x + attention(norm(x)), then x + down(silu(gate) * up) of its norm. The projections of
queries, keys and values are one matrix product, those of gate and up another, and what lies between
the products is one loop each (``rlcore.kernels``). Attention itself stays transformers' function.
The last layer computes what follows its attention only for the tokens that are read: in SFT those
before an answer's, for a reward model one of each text. float32 on a CPU only. Axes: T tokens, H
query heads, K heads of keys and values, D dimensions of a head.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

from rlcore.kernels.parallel import run, serves
from rlcore.models.norms import agree, epsilon_of, norm_gradient, normed
from rlcore.models.tree_mask import takes_masks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAMES = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer")
_PROBED = (2, 7)  # rows, tokens


class Projections(torch.autograd.Function):
    """Queries, keys and values of a layer, turned by their positions; and the residual."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        norm: torch.Tensor,
        epsilon: float,
        angles: tuple[torch.Tensor, torch.Tensor],
        *weights: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """``hidden`` [..., T, hidden]; ``angles``: cosines and sines [..., T, D]; ``weights`` and
        biases of queries, keys and values: six, the biases last, which may be None.

        Return [..., heads, T, D] of each, and ``hidden`` once more: a layer that reads it from here
        lets its gradient be added in the same loop as the norm's.
        """
        x = hidden.contiguous()
        cos, sin = (each.contiguous() for each in angles)
        dim = cos.shape[-1]
        y, inverse = normed(x, norm, epsilon)
        weight, bias = _joined(weights[:3]), _joined(weights[3:])
        assert weight is not None, "a projection has a weight"
        projected = nn.functional.linear(y, weight, bias)
        heads = [len(each) // dim for each in weights[:3] if each is not None]
        _turn(projected, heads, cos, sin)
        ctx.heads = heads
        ctx.save_for_backward(x, norm, inverse, y, cos, sin, *weights)
        ctx.set_materialize_grads(False)
        parts = projected.unflatten(-1, (-1, dim)).transpose(-3, -2).split(heads, -3)
        return *parts, hidden.view_as(hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Any) -> tuple[torch.Tensor | None, ...]:
        """Return gradients for those of queries, keys, values and the residual."""
        *of_heads, of_residual = outputs
        x, norm, inverse, y, cos, sin, *weights = ctx.saved_tensors
        gradient = torch.cat([each.transpose(-3, -2) for each in of_heads], -2).flatten(-2)
        _turn(gradient, ctx.heads, cos, sin, back=True)
        flat = gradient.flatten(0, -2)
        sizes = [len(each) for each in weights[:3]]
        of_weights = torch.mm(flat.t(), y.flatten(0, -2)).split(sizes)
        of_biases: tuple[Any, ...] = (None, None, None)
        if weights[3] is not None:
            of_biases = flat.sum(0).split(sizes)
        into_y = torch.mm(flat, torch.cat(weights[:3]))
        of_x, of_norm = norm_gradient(x, norm, inverse, into_y, of_residual)
        return of_x, of_norm, None, None, *of_weights, *of_biases


class Outputs(torch.autograd.Function):
    """What a layer makes of its attention: the output projection and the gated MLP, both added."""

    @staticmethod
    def forward(
        ctx: Any,
        residual: torch.Tensor,
        attended: torch.Tensor,
        norm: torch.Tensor,
        epsilon: float,
        out: torch.Tensor,
        gate: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
    ) -> torch.Tensor:
        """``residual`` [..., T, hidden], ``attended`` [..., T, H D] -> [..., T, hidden]."""
        read = attended.flatten(0, -2)
        x = torch.addmm(residual.flatten(0, -2), read, out.t())
        y, inverse = normed(x, norm, epsilon)
        gates = torch.mm(y, torch.cat((gate, up)).t())
        inner = gates.new_empty(len(x), len(up))
        run("swiglu", len(x), len(up), gates, inner)
        ctx.save_for_backward(read, x, norm, inverse, y, gates, out, gate, up, down)
        return torch.addmm(x, inner, down.t()).view_as(residual)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Any) -> tuple[torch.Tensor | None, ...]:
        """Return gradients for that of the output. The gates are overwritten with theirs, so that
        the graph can be walked once."""
        read, x, norm, inverse, y, gates, out, gate, up, down = ctx.saved_tensors
        (shaped,) = outputs
        gradient = shaped.flatten(0, -2).contiguous()
        inner = torch.mm(gradient, down)
        run("swiglu_gradient", len(x), len(up), gates, inner)
        increment_version(gates)
        of_down = torch.mm(gradient.t(), inner)
        of_gates = torch.mm(gates.t(), y).split(len(gate))
        into_y = torch.mm(gates, torch.cat((gate, up)))
        of_x, of_norm = norm_gradient(x, norm, inverse, into_y, gradient)
        of_out = torch.mm(of_x.t(), read)
        into_read = torch.mm(of_x, out).view(*shaped.shape[:-1], -1)
        return of_x.view_as(shaped), into_read, of_norm, None, of_out, *of_gates, of_down


def _joined(parameters: Any) -> torch.Tensor | None:
    return None if parameters[0] is None else torch.cat(tuple(parameters))


def _turn(
    projected: torch.Tensor,
    heads: list[int],
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    back: bool = False,
) -> None:
    """Turn queries and keys of ``projected`` [..., T, (H + 2 K) D] in place."""
    dim, width = cos.shape[-1], projected.shape[-1]
    rows = projected.numel() // width
    run("rotate", rows, width, heads[0] + heads[1], dim, projected, cos, sin, int(back))


def speed_up_layers(model: "PreTrainedModel") -> int:
    """Let the functions above compute the layers of ``model`` that they equal; return how many.

    They are found by name and by what they do: output and gradients on random tokens must be the
    same up to rounding. Layers of other dtypes or devices, with biases beside those of queries,
    keys and values, or that attend to a window stay as they are. Not for weights that ZeRO 3
    gathers module by module.
    """
    found = [
        layer
        for layer in model.modules()
        if type(layer).__name__ in NAMES and takes_masks(model) and _served(layer)
    ]
    equal = [layer for layer in found if _equals(layer)]
    last = _last(model.base_model)
    for layer in equal:
        layer.forward = partial(forward, layer, reads=layer is last)
    if last in equal and not _reads(model):
        last.forward = partial(forward, last)
    return len(equal)


def decoded(decoder: Any, places: torch.Tensor, **inputs: Any) -> torch.Tensor:
    """Return what ``decoder``, of transformers, makes of its tokens at flat ``places``: [places,
    hidden]. ``inputs``: those of the decoder."""
    inputs["use_cache"] = False
    if getattr(getattr(_last(decoder), "forward", None), "keywords", {}).get("reads"):
        return decoder(**inputs, places=places).last_hidden_state
    return decoder(**inputs).last_hidden_state.flatten(0, -2).index_select(0, places)


def forward(
    layer: Any,
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    past_key_values: None = None,
    reads: bool = False,
    places: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """``forward`` of ``layer``, a decoder layer of transformers, which has no cache here.

    One that ``reads`` returns its output [..., T, hidden] at the flat ``places`` only: [places,
    hidden]. A decoder gives these to all of its layers, and its last one reads."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert past_key_values is None, "learners keep no keys and values"
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    *heads, residual = Projections.apply(
        hidden_states,
        layer.input_layernorm.weight,
        epsilon_of(layer.input_layernorm),
        position_embeddings,
        *(each.weight for each in projections),
        *(each.bias for each in projections),
    )
    attended, _ = ALL_ATTENTION_FUNCTIONS[attention.config._attn_implementation](
        attention, *heads, attention_mask, dropout=0.0, scaling=attention.scaling, **options
    )
    attended = attended.flatten(-2)
    if reads and places is not None:
        residual, attended = (
            each.flatten(0, -2).index_select(0, places) for each in (residual, attended)
        )
    return Outputs.apply(
        residual,
        attended,
        layer.post_attention_layernorm.weight,
        epsilon_of(layer.post_attention_layernorm),
        attention.o_proj.weight,
        *(each.weight for each in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)),
    )


def _last(decoder: Any) -> Any:
    """The last layer of ``decoder``; None where it has no list of them."""
    layers = getattr(decoder, "layers", None)
    return layers[-1] if layers else None


@torch.no_grad()
def _reads(model: "PreTrainedModel") -> bool:
    """Whether what follows the last layer of ``model`` is the same for the tokens that it reads as
    for all, tried on a few."""
    device, tokens = next(model.parameters()).device, torch.arange(_PROBED[1])
    ids = tokens.to(device)[None] % model.config.get_text_config().vocab_size
    places = ids.new_tensor([_PROBED[1] - 1, 1])
    asked = {"input_ids": ids, "use_cache": False}
    whole = model.base_model(**asked).last_hidden_state[0, places]
    read = model.base_model(**asked, places=places).last_hidden_state
    return read.shape == whole.shape and torch.allclose(read, whole, rtol=1e-3, atol=1e-5)


def _served(layer: Any) -> bool:
    plain = (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    weights = list(layer.parameters())
    return (
        layer.self_attn.config.hidden_act == "silu"
        and layer.self_attn.config._attn_implementation == "sdpa"
        and all(each.bias is None for each in plain)
        and all(serves(each) for each in weights)
    )


def _equals(layer: Any) -> bool:
    """Whether ``forward`` computes ``layer``, tried with its own weights."""
    rows, tokens = _PROBED
    hidden, dim = layer.self_attn.q_proj.in_features, layer.self_attn.head_dim
    draw = torch.Generator().manual_seed(0)
    x, gradient, turned = (
        torch.randn(rows, tokens, width, generator=draw) for width in (hidden, hidden, dim)
    )
    angles = turned.cos(), turned.sin()
    x.requires_grad_()
    theirs, ours = (
        compute(x, attention_mask=None, position_embeddings=angles)
        for compute in (layer.forward, partial(forward, layer))
    )
    weights = tuple(each for each in layer.parameters() if each.requires_grad)
    return agree(theirs, ours, (x, *weights), gradient)

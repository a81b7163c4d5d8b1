"""RMS norms whose gradient is one formula: y = w * n, n = x / rms(x) (Zhang and Sennrich 2019,
equation 4).

Autograd would follow the six operations that models write the norm in, each over all activations:
7 % of an SFT step of 0.36 M parameters. On a CPU ``torch.nn.functional.rms_norm`` is these
operations too, and takes as long.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

_PROBED = 7  # rows


class RMSNorm(torch.autograd.Function):
    """x [..., hidden], weight [hidden], epsilon -> y [..., hidden], in float32.

    The forward pass is that of transformers' models bit for bit. With n = x / rms(x):
    dx = (w g - n mean(w g n)) / rms(x), dw = sum of g n.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Return y."""
        inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)
        normal = x * inverse
        ctx.save_for_backward(normal, inverse, weight)
        return weight * normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the gradients of x and weight for that of y."""
        (gradient,) = outputs
        normal, inverse, weight = ctx.saved_tensors
        product = (gradient * normal).flatten(0, -2)  # [rows, hidden]
        along = torch.mv(product, weight).view_as(inverse)
        dx = (gradient * weight).addcmul_(normal, along, value=-1.0 / len(weight)).mul_(inverse)
        return dx, torch.mv(product.T, product.new_ones(len(product))), None


def give_norms_one_gradient(model: nn.Module) -> int:
    """Let ``RMSNorm`` compute those modules of ``model`` that it equals; return how many.

    They are found by name and by what they do: the output on random rows must be the same, and the
    gradients up to rounding. Norms of another formula (Gemma's 1 + w) and norms of weights that are
    not float32 stay as they are.
    """
    equal = [module for module in model.modules() if _equals(module)]
    for module in equal:
        module.forward = partial(_forward, module, _epsilon(module))
    return len(equal)


def _forward(module: nn.Module, epsilon: float, hidden_states: torch.Tensor) -> torch.Tensor:
    if hidden_states.dtype != torch.float32 or not torch.is_grad_enabled():
        return type(module).forward(module, hidden_states)
    return RMSNorm.apply(hidden_states, module.weight, epsilon)


def _epsilon(module: nn.Module) -> Any:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _equals(module: nn.Module) -> bool:
    """Whether ``module`` is an RMS norm of float32 that ``RMSNorm`` equals."""
    weight = dict(module.named_parameters()).get("weight")
    epsilon = _epsilon(module)
    if (
        not type(module).__name__.endswith("RMSNorm")
        or not isinstance(epsilon, float)
        or weight is None
        or weight.dtype != torch.float32
        or weight.dim() != 1
    ):
        return False
    draw = torch.Generator().manual_seed(0)
    x, w, gradient = (
        torch.randn(shape, generator=draw).to(weight.device)
        for shape in ((_PROBED, len(weight)), (len(weight),), (_PROBED, len(weight)))
    )
    x.requires_grad_()
    w.requires_grad_()
    theirs = torch.func.functional_call(module, {"weight": w}, (x,))
    ours = RMSNorm.apply(x, w, epsilon)
    if not torch.equal(theirs, ours):
        return False
    pairs = zip(*(torch.autograd.grad(y, (x, w), gradient) for y in (theirs, ours)), strict=True)
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in pairs)

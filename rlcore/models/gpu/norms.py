"""RMS norms in two operations: y = w * n, n = x / rms(x) (Zhang and Sennrich 2019, equation 4).

Models write the norm in six, and launching those takes longer than computing them.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import rms_norm

_PROBED = 7  # rows
ROUNDING = 1e-4  # of the largest number


def speed_up_norms(model: nn.Module) -> int:
    """Let the above compute those modules of ``model`` that it equals; return how many.

    They are found by name and by what they do: outputs and gradients on random rows must be the
    same up to rounding. Norms of another formula (Gemma's 1 + w) stay as they are.
    """
    equal = [module for module in model.modules() if _equals(module)]
    for module in equal:
        module.forward = partial(_forward, module, epsilon_of(module))
    return len(equal)


def epsilon_of(norm: nn.Module) -> Any:
    """Return what an RMS norm of transformers adds to the mean square; None for another module."""
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def _forward(module: nn.Module, epsilon: float, hidden_states: torch.Tensor) -> torch.Tensor:
    return _normed(hidden_states, module.weight, epsilon)


def _normed(x: torch.Tensor, weight: Any, epsilon: float) -> torch.Tensor:
    # n is rounded to the dtype of x before it is multiplied, as in transformers and in vLLM.
    return rms_norm(x, weight.shape, eps=epsilon) * weight


def _equals(module: nn.Module) -> bool:
    """Whether ``module`` is an RMS norm that ``_normed`` equals, tried where it lies."""
    weight = dict(module.named_parameters()).get("weight")
    epsilon = epsilon_of(module)
    if (
        not type(module).__name__.endswith("RMSNorm")
        or not isinstance(epsilon, float)
        or weight is None
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
    ours = _normed(x, w, epsilon)
    return agree(theirs, ours, (x, w), gradient)


def agree(
    theirs: torch.Tensor,
    ours: torch.Tensor,
    inputs: tuple[torch.Tensor, ...],
    gradient: torch.Tensor,
) -> bool:
    """Return whether outputs, and gradients of ``inputs`` for the outputs' ``gradient``, are equal
    up to rounding. Some gradients are rounding alone, as that of a bias of keys: what is allowed
    grows with the largest number of all as well as with that of each."""
    expected = (theirs, *torch.autograd.grad(theirs, inputs, gradient))
    found = (ours, *torch.autograd.grad(ours, inputs, gradient))
    largest = [float(each.detach().abs().max()) for each in expected]
    return all(
        float((one - other).detach().abs().max()) <= ROUNDING * (size + max(largest) / 10)
        for one, other, size in zip(expected, found, largest, strict=True)
    )

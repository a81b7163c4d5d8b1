"""RMS norms in one pass over the activations: y = w * n, n = x / rms(x) (Zhang and Sennrich 2019,
equation 4).

Models write the norm in six operations, and autograd follows each of them over all activations.
Here it is one loop for float32 on a CPU, and two operations on a GPU, where launching the others
takes longer than computing them.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import rms_norm

from rlcore.kernels.parallel import CHUNKS, run, serves

_PROBED = 7  # rows
ROUNDING = 1e-4  # of the largest number


def normed(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return y [..., hidden] and 1 / rms(x), a number per row, of contiguous x [..., hidden]."""
    width = len(weight)
    y, inverse = torch.empty_like(x), x.new_empty(x.numel() // width)
    run("rms_norm", len(inverse), width, x, weight, epsilon, y, inverse)
    return y, inverse


def norm_gradient(
    x: torch.Tensor,
    weight: torch.Tensor,
    inverse: torch.Tensor,
    gradient: torch.Tensor,
    more: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of x, plus ``more`` of its shape, and of weight, for that of y.

    ``inverse``: of ``normed``. With n = x / rms(x) and g the gradient of y: of x
    (w g - n mean(w g n)) / rms(x), of weight the sum of g n.
    """
    width = len(weight)
    of_x, of_weight = torch.empty_like(x), x.new_zeros(CHUNKS, width)
    added = () if more is None else (more.contiguous(),)
    run(
        "rms_norm_gradient",
        len(inverse),
        *(width, x, weight, inverse, gradient.contiguous()),
        *(len(added), *(added or (0,)), of_x, of_weight),
    )
    return of_x, of_weight.sum(0)


class RMSNorm(torch.autograd.Function):
    """x [..., hidden], weight [hidden], epsilon -> y [..., hidden]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Return y."""
        x, weight = x.contiguous(), weight.contiguous()
        y, inverse = normed(x, weight, epsilon)
        ctx.save_for_backward(x, weight, inverse)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the gradients of x and weight for that of y."""
        return *norm_gradient(*ctx.saved_tensors, *outputs), None


def speed_up_norms(model: nn.Module) -> int:
    """Let the above compute those modules of ``model`` that it equals; return how many.

    They are found by name and by what they do: outputs and gradients on random rows must be the
    same up to rounding. Norms of another formula (Gemma's 1 + w) stay as they are, and on a CPU
    those of weights that are not float32.
    """
    equal = [module for module in model.modules() if _equals(module)]
    for module in equal:
        module.forward = partial(_forward, module, epsilon_of(module))
    return len(equal)


def epsilon_of(norm: nn.Module) -> Any:
    """Return what an RMS norm of transformers adds to the mean square; None for another module."""
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def _forward(module: nn.Module, epsilon: float, hidden_states: torch.Tensor) -> torch.Tensor:
    if not _computes(hidden_states):
        return type(module).forward(module, hidden_states)
    return _normed(hidden_states, module.weight, epsilon)


def _computes(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda or serves(tensor)


def _normed(x: torch.Tensor, weight: Any, epsilon: float) -> torch.Tensor:
    if serves(x):
        return RMSNorm.apply(x, weight, epsilon)
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
        or not _computes(weight)
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

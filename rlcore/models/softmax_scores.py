"""Log-probs and entropies of logits in one pass over them, and their gradient in another, in place.

float32 on a CPU only; ``rlcore.models.logprobs`` has the formulas.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

from rlcore.kernels import parallel
from rlcore.kernels.parallel import run


def serves(logits: torch.Tensor) -> bool:
    """Return whether ``SoftmaxScores`` computes ``logits``."""
    return parallel.serves(logits) and logits.numel() > 0


class SoftmaxScores(torch.autograd.Function):
    """logits [targets, vocabulary] -> log-probs [targets], entropies [targets] or [0], in nats.

    Log-probs do not depend on whether entropies or gradients are wanted: all is always computed.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target_ids: torch.Tensor,
        temperature: float,
        entropy_grad: bool | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``entropy_grad``: None no entropies, False without gradient, True with."""
        logits, ctx.scale = logits.contiguous(), 1.0 / temperature
        targets, size = logits.shape
        logprobs, most, totals, entropies = logits.new_empty(4, targets)
        run(
            "score",
            targets,
            *(size, logits, ctx.scale, target_ids.contiguous()),
            *(logprobs, most, totals, entropies),
        )
        ctx.save_for_backward(logits, target_ids, most, totals, entropies)
        ctx.wanted = bool(entropy_grad)
        entropies = entropies[:0] if entropy_grad is None else entropies
        if not entropy_grad:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Any) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of the logits, which takes their place: the graph can be walked
        once."""
        logits, target_ids, most, totals, entropies = ctx.saved_tensors
        of_logprobs, of_entropies = (each.contiguous() for each in outputs)
        targets, size = logits.shape
        run(
            "score_gradient",
            targets,
            *(size, logits, ctx.scale, target_ids.contiguous(), most, totals, entropies),
            *(of_logprobs, of_entropies, int(ctx.wanted)),
        )
        increment_version(logits)
        return logits, None, None, None

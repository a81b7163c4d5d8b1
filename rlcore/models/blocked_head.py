"""Log-probs and entropies from hidden states, one block of the vocabulary at a time.

Per token the forward pass keeps the logarithm of the sum of exponentials; backward computes each
block's logits again and turns them into their own gradient in place. So no ``[tokens, vocabulary]``
exists, and of each matrix product the operands are long in two axes. The recurrence of maximum and
sum over blocks: Milakov and Gimelshein, arXiv 1805.02867; recomputing in backward: Cut
Cross-Entropy, arXiv 2411.09009.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from rlcore.models.softcap import FinalLogits

# fp32 logits at once; several such tensors are alive. On a CPU 16 MiB, which stay in caches of that
# size; on a GPU, where each of some dozen operations on a block is launched, 128 MiB.
BLOCK_LOGITS = 4 * 2**20
BLOCK_LOGITS_OF_A_GPU = 32 * 2**20


def plain_weight(head: nn.Module) -> torch.Tensor | None:
    """Return the weight [vocabulary, hidden] of a head that is this product and nothing else.

    None for a head that must be called as a module: of another class, with a bias, or with hooks,
    by which ZeRO 3 gathers the weight.
    """
    hooked = len(head._forward_pre_hooks) or len(head._forward_hooks)
    if type(head) is not nn.Linear or head.bias is not None or hooked:
        return None
    return head.weight


def blocked_scores(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target_ids: torch.Tensor,
    temperature: float = 1.0,
    entropy_grad: bool | None = None,
    final: FinalLogits = FinalLogits(),  # noqa: B008 - frozen
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probs [targets] and entropies [targets] or [0], fp32, nats, of softmax(logits /
    ``temperature``), where the logits are ``final`` of the product.

    ``hidden`` [targets, hidden] and ``weight`` [vocabulary, hidden] share a dtype; gradients have
    it too, and are summed over blocks in fp32. ``entropy_grad``: None none, False without gradient,
    True with. Log-probs do not depend on it, nor on whether a gradient is wanted, bit for bit.
    """
    return _BlockedScores.apply(hidden, weight, target_ids, temperature, entropy_grad, final)


class _BlockedScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        target_ids: torch.Tensor,
        temperature: float,
        entropy_grad: bool | None,
        final: FinalLogits,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lowest = torch.full(target_ids.shape, -torch.inf, device=hidden.device)
        largest, target = lowest, lowest
        total = torch.zeros_like(lowest)  # sum of exp(logit - largest)
        moment = torch.zeros_like(lowest)  # sum of exp(logit - largest) * (logit - largest)
        for start, rows in _blocks(weight, len(target_ids)):
            logits = _tempered(final(_product(hidden, rows)), temperature)
            place, inside = _places(target_ids, start, len(rows))
            target = torch.where(inside, logits.gather(1, place).squeeze(1), target)
            before, largest = largest, torch.maximum(largest, logits.amax(1))
            shift = before - largest
            scale = shift.exp()
            logits -= largest[:, None]
            if entropy_grad is None:
                exponentials = logits.exp_()
            else:
                exponentials = logits.exp()
                # The first block's shift is -inf, and there is nothing to move.
                moved = torch.where(total > 0, scale * (moment + shift * total), 0.0)
                moment = moved + logits.mul_(exponentials).sum(1)
            total = scale * total + exponentials.sum(1)
        log_total = largest + total.log()
        entropies = lowest[:0] if entropy_grad is None else total.log() - moment / total
        ctx.save_for_backward(hidden, weight, target_ids, log_total, entropies)
        ctx.temperature, ctx.entropy_grad, ctx.final = temperature, entropy_grad, final
        if not entropy_grad:
            ctx.mark_non_differentiable(entropies)
        return target - log_total, entropies

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_logprobs: torch.Tensor, of_entropies: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, target_ids, log_total, entropies = ctx.saved_tensors
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        into_hidden = torch.zeros(hidden.shape, device=hidden.device) if wants_hidden else None
        into_weight = torch.empty_like(weight) if wants_weight else None
        for start, rows in _blocks(weight, len(target_ids)):
            logits = ctx.final(_product(hidden, rows))
            slope = ctx.final.slope(logits)
            log_probs = _tempered(logits, ctx.temperature).sub_(log_total[:, None])
            if ctx.entropy_grad:
                probs = log_probs.exp()
                factor = log_probs.add_(entropies[:, None]).mul_(of_entropies[:, None])
                gradient = factor.add_(of_logprobs[:, None]).mul_(probs).neg_()
            else:
                gradient = log_probs.exp_().mul_(-of_logprobs[:, None])
            place, inside = _places(target_ids, start, len(rows))
            gradient.scatter_add_(1, place, torch.where(inside, of_logprobs, 0.0)[:, None])
            if ctx.temperature != 1.0:
                gradient /= ctx.temperature
            if isinstance(slope, torch.Tensor) or slope != 1.0:
                gradient *= slope
            gradient = gradient.to(weight.dtype)
            if into_hidden is not None:
                into_hidden += gradient @ rows
            if into_weight is not None:
                torch.mm(gradient.t(), hidden, out=into_weight[start : start + len(rows)])
        if into_hidden is not None:
            into_hidden = into_hidden.to(hidden.dtype)
        return into_hidden, into_weight, None, None, None, None


def _blocks(weight: torch.Tensor, num_tokens: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the first id and the rows of ``weight`` of each block of logits."""
    most = BLOCK_LOGITS if weight.device.type == "cpu" else BLOCK_LOGITS_OF_A_GPU
    width = max(1, most // num_tokens)
    for start in range(0, len(weight), width):
        yield start, weight[start : start + width]


def _product(hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The head's product [targets, block] in fp32, a tensor of its own."""
    return (hidden @ rows.t()).float()


def _tempered(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """``logits`` / ``temperature``, in their place."""
    return logits if temperature == 1.0 else logits.div_(temperature)


def _places(target_ids: torch.Tensor, start: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Column [targets, 1] of each target in the block, and whether it is there [targets]."""
    local = target_ids - start
    inside = (local >= 0) & (local < width)
    return local.clamp(0, width - 1)[:, None], inside

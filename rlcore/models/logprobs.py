"""Token log-probs, entropies and exact KL of a causal LM at packed positions; of a large
vocabulary one block at a time.

Per token the forward pass keeps the logarithm of the sum of exponentials; backward computes each
block's logits again and overwrites them with their own gradient. So no ``[tokens, vocabulary]``
exists, and of each matrix product the operands are long in two axes. The recurrence of maximum and
sum over blocks: Milakov and Gimelshein, arXiv 1805.02867; recomputing in backward: Cut
Cross-Entropy, arXiv 2411.09009.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlcore.algorithms.kl import categorical_entropy
from rlcore.algorithms.kl import full_kl as kl_of_distributions
from rlcore.models.adapter import adapter_off
from rlcore.models.architectures import FinalLogits, final_logits
from schemas.errors import UserError

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


class BlockedScores(torch.autograd.Function):
    """Log-probs [targets] and entropies [targets] or [0], fp32, nats, of softmax(logits /
    ``temperature``), where the logits are ``final`` of the product.

    ``hidden`` [targets, hidden] and ``weight`` [vocabulary, hidden] share a dtype; gradients have
    it too, and are summed over blocks in fp32. ``entropy_grad``: None none, False without gradient,
    True with. Log-probs do not depend on it, nor on whether a gradient is wanted, bit for bit.
    """

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
    """The head's product [targets, block] in fp32, a separate tensor."""
    return (hidden @ rows.t()).float()


def _tempered(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """``logits`` / ``temperature``, in their place."""
    return logits if temperature == 1.0 else logits.div_(temperature)


def _places(target_ids: torch.Tensor, start: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Column [targets, 1] of each target in the block, and whether it is there [targets]."""
    local = target_ids - start
    inside = (local >= 0) & (local < width)
    return local.clamp(0, width - 1)[:, None], inside


CHUNK_LOGITS = 64 * 2**20  # fp32 logits at once: 256 MiB; backward holds a few such tensors
HEAD_TOLERANCE = 1e-3  # relative; covers the rounding of bf16 heads

Scores = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class TokenLogprobModel(nn.Module):
    """A causal LM that returns log-probs of chosen tokens instead of logits of all.

    The head runs on the predicting positions only. Once the logits exceed ``CHUNK_LOGITS`` (fp32
    elements) they are computed in parts, and again in backward, so that a vocabulary of 150 k fits:
    in blocks of the vocabulary (``rlcore.models.logprobs``) where the head is a plain matrix
    and no reference is held, else in chunks of tokens.
    """

    def __init__(self, lm: PreTrainedModel, reference: "TokenLogprobModel | None" = None) -> None:
        """``reference``: a frozen model of the same vocabulary, for the exact KL."""
        super().__init__()
        self.lm = lm
        # In a list, so that it is not a submodule: neither trained, nor sharded, nor in a
        # checkpoint.
        self._reference = [] if reference is None else [reference]
        self.final = final_logits(lm.config)

    @property
    def reference(self) -> "TokenLogprobModel | None":
        """The frozen model of the exact KL."""
        return self._reference[0] if self._reference else None

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        predictors: torch.Tensor,
        target_ids: torch.Tensor,
        temperature: float = 1.0,
        entropy_grad: bool | None = None,
        full_kl: bool = False,
        head_calls: int = 1,
        documents: torch.Tensor | None = None,
        continued: torch.Tensor | None = None,
    ) -> Scores:
        """Return log-probs [targets], entropies [targets] or [0], KLs [targets] or [0], fp32, nats.

        ``input_ids``, ``position_ids`` [rows, row_tokens]; ``predictors`` [targets]: flat places.
        Log-softmax of logits / ``temperature`` in fp32. ``entropy_grad``: None none, False without
        gradient, True with. ``full_kl``: exact KL(policy || reference), with gradient.
        ``head_calls``: the head is called at least so often, if with no tokens: where its weight is
        sharded a call is collective. ``documents``, ``continued``: as
        ``rlcore.models.packing.MicroBatch`` has them.
        """

        def score(
            hidden: torch.Tensor, ids: torch.Tensor, reference_hidden: torch.Tensor | None
        ) -> Scores:
            theirs = None
            if reference_hidden is not None:
                theirs = self._reference[0].logits(reference_hidden)
            return scores_of_logits(self.logits(hidden), ids, temperature, entropy_grad, theirs)

        mask = tree_mask(documents, continued)
        hidden, frozen = self._hidden(input_ids, position_ids, predictors, mask), None
        if full_kl:
            with torch.no_grad():
                frozen = self._reference[0]._hidden(input_ids, position_ids, predictors, mask)
        calls = max(head_calls, self.head_calls(len(target_ids)))
        if calls == 1:
            return score(hidden, target_ids, frozen)
        weight = None if self._reference else plain_weight(_head(self.lm))
        if weight is not None:
            found = BlockedScores.apply(
                hidden, weight, target_ids, temperature, entropy_grad, self.final
            )
            return *found, found[0].new_zeros(0)
        parts = [
            checkpoint(score, *chunk, use_reentrant=False)
            if torch.is_grad_enabled()
            else score(*chunk)
            for chunk in zip(
                self._chunks(hidden, calls),
                self._chunks(target_ids, calls),
                [None] * calls if frozen is None else self._chunks(frozen, calls),
                strict=True,
            )
        ]
        logprobs, entropies, kls = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(entropies), torch.cat(kls)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the model's logits [targets, vocabulary] of decoder outputs [targets, hidden]."""
        return self.final(_head(self.lm)(hidden))

    def head_calls(self, num_targets: int) -> int:
        """Return how often a pass over so many targets calls a head that cannot be run in blocks of
        the vocabulary."""
        return max(1, -(-num_targets // self._chunk_tokens))

    @property
    def _chunk_tokens(self) -> int:
        # Depends on the models held and not on the quantities requested: another chunk size would
        # round differently, and scoring must equal training bit for bit.
        models = 1 + len(self._reference)
        return max(1, CHUNK_LOGITS // (self.lm.config.get_text_config().vocab_size * models))

    def _chunks(self, per_target: torch.Tensor, count: int) -> list[torch.Tensor]:
        """Cut along the targets into ``count`` chunks, the last of which may be empty."""
        full = per_target.split(self._chunk_tokens)
        return [*full, *[per_target[:0]] * (count - len(full))]

    def _hidden(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        predictors: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Decoder outputs [targets, hidden] at ``predictors``."""
        return decoded(
            self.lm.get_decoder(),
            predictors,
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=mask,
        )


class WithoutAdapter(TokenLogprobModel):
    """The frozen model under an adapter: the reference of what the adapter trains."""

    def _hidden(self, *inputs: Any, **named: Any) -> torch.Tensor:
        with adapter_off(self.lm):
            return super()._hidden(*inputs, **named)


def tree_mask(
    documents: torch.Tensor | None, continued: torch.Tensor | None
) -> torch.Tensor | None:
    """Return [rows, 1, row_tokens, row_tokens] bool, True where a place (third axis) attends to
    another: an earlier one, or itself, of its document or of the one that its document continues.

    ``documents``, ``continued``: as ``rlcore.models.packing.MicroBatch`` has them, int32 [rows,
    row_tokens]; None gives None, as the library then derives the mask from the positions.
    """
    if documents is None or continued is None:
        return None
    of_place, seen = documents[:, :, None], documents[:, None, :]
    attends = (seen == of_place) | (seen == continued[:, :, None])
    return attends.tril_()[:, None]


def decoded(decoder: Any, places: torch.Tensor, **inputs: Any) -> torch.Tensor:
    """Return what ``decoder``, of transformers, makes of its tokens at flat ``places``: [places,
    hidden]. ``inputs``: those of the decoder."""
    hidden = decoder(**inputs, use_cache=False).last_hidden_state
    return hidden.flatten(0, -2).index_select(0, places)


def scores_of_logits(
    logits: torch.Tensor,
    target_ids: torch.Tensor,
    temperature: float = 1.0,
    entropy_grad: bool | None = None,
    reference_logits: torch.Tensor | None = None,
) -> Scores:
    """Return (log-probs [targets], entropies [targets] or [0], KLs [targets] or [0]).

    ``logits`` [targets, vocabulary]; with ``reference_logits`` of that shape, the exact KL to their
    distribution at the same temperature.
    """
    kls = logits.new_zeros(0, dtype=torch.float32)
    if reference_logits is not None:
        theirs = _log_softmax(reference_logits, temperature)
        kls = kl_of_distributions(_log_softmax(logits, temperature), theirs)
    log_softmax = _log_softmax(logits, temperature)
    logprobs = log_softmax.gather(-1, target_ids[:, None]).squeeze(-1)
    entropies = logprobs.new_zeros(0)
    if entropy_grad is not None:
        with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
            entropies = categorical_entropy(log_softmax)
    return logprobs, entropies, kls


def _log_softmax(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = logits.float()
    return torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)


def check_head(model: TokenLogprobModel) -> None:
    """Verify on eight tokens that the logits of this architecture are head(decoder output), scaled
    or capped as ``rlcore.models.architectures`` knows.

    Training with others would silently optimise another model. Raises ``UserError`` naming the
    architecture.
    """
    lm = model.lm
    device = next(lm.parameters()).device
    ids = torch.arange(8, device=device)[None] % lm.config.get_text_config().vocab_size
    positions = torch.arange(8, device=device)[None]
    with torch.no_grad():
        whole = lm(input_ids=ids, position_ids=positions, use_cache=False).logits.float()
        hidden = lm.get_decoder()(
            input_ids=ids, position_ids=positions, use_cache=False
        ).last_hidden_state
        ours = model.logits(hidden).float()
    if (whole - ours).abs().max() > HEAD_TOLERANCE * whole.abs().max():
        raise UserError(
            f"architecture {type(lm).__name__} changes its logits after the output head in a way"
            " that is neither scaling nor soft-capping by its config.json, and the learner would"
            " train another model; use an architecture of docs/reference/architectures.md"
        )


def _head(lm: PreTrainedModel) -> nn.Module:
    head = lm.get_output_embeddings()
    if head is None:
        raise UserError(
            f"architecture {type(lm).__name__} has no output head; use a causal language model"
        )
    return head


def turn_off_dropout(lm: nn.Module) -> None:
    """Set every dropout probability to 0, in modules and in attention code that reads it.

    The model then stays in train mode (gradient checkpointing needs it) with eval-mode numerics:
    two passes over the same tokens must give the same log-probs, or the ratio is noise.
    """
    for module in lm.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0

"""Offline preference: DPO and KTO, from the log-probs of whole responses.

The score of a response is h = sum over its tokens of (log-prob - reference log-prob), added in
float64 and not clamped: a clamp would end the gradient of the responses that moved most. Lower rank
= better. To add a loss over pairs: an entry of ``PAIR_LOSSES``. Axes: B responses, P pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlcore.algorithms.losses import is_preferred
from rlcore.algorithms.objective_types import Metrics, Objective, TokenBatch, TokenOutputs

if TYPE_CHECKING:
    import torch

NAME = "preference"


def sigmoid_loss(margins: torch.Tensor, beta: float, smoothing: float) -> torch.Tensor:
    """Return -(1 - e) log sigmoid(b d) - e log sigmoid(-b d) [P] for margins d [P], nats.

    DPO, arXiv 2305.18290 eq. 7; e is the share of flipped labels of conservative DPO. OpenRLHF's
    ``label_smoothing`` is the same; TRL's "sigmoid" ignores its own.
    """
    from torch.nn.functional import logsigmoid

    return -(1.0 - smoothing) * logsigmoid(beta * margins) - smoothing * logsigmoid(-beta * margins)


def ipo_loss(margins: torch.Tensor, beta: float, smoothing: float) -> torch.Tensor:
    """Return (d - 1 / (2 b))² [P] for margins d [P], nats per token (IPO, arXiv 2310.12036 eq. 17).

    As in TRL, d is a difference of means over tokens; the paper's and OpenRLHF's is one of sums.
    """
    assert smoothing == 0, "the recipe refuses label smoothing with ipo"
    return (margins - 1.0 / (2.0 * beta)) ** 2


@dataclass(frozen=True, slots=True)
class PairLoss:
    """``loss``: of margins, beta and label smoothing. ``per_token``: its scores are means over the
    tokens of a response."""

    loss: Callable[[torch.Tensor, float, float], torch.Tensor]
    per_token: bool = False


PAIR_LOSSES = {"sigmoid": PairLoss(sigmoid_loss), "ipo": PairLoss(ipo_loss, per_token=True)}


def kto_losses(
    scores: torch.Tensor,
    desirable: torch.Tensor,
    *,
    kl: float,
    beta: float,
    weights: tuple[float, float],
) -> torch.Tensor:
    """Return w_D (1 - sigmoid(b (h - z))) for desirable responses, w_U (1 - sigmoid(b (z - h))) for
    the others [B]; z = ``kl``, without a gradient (KTO, arXiv 2402.01306 eq. 7).

    ``scores``: h [B], nats; ``desirable`` [B] bool; ``weights``: w_D, w_U.
    """
    import torch

    towards = torch.where(desirable, scores - kl, kl - scores)
    weight = torch.where(desirable, *scores.new_tensor(weights))
    return weight * torch.sigmoid(-beta * towards)


def reference_point(policy: np.ndarray, reference: np.ndarray) -> float:
    """Return KTO's z: the mean of the scores of responses to other prompts, at least 0, nats; 0
    where there is none.

    ``policy``, ``reference`` [B] float64: sums of log-probs. Of a whole optimizer step: in TRL it
    is that of a micro-batch, on whose size the loss then depends.
    """
    return max(0.0, float((policy - reference).mean())) if len(policy) else 0.0


@dataclass(frozen=True, slots=True)
class Responses:
    """The responses of a micro-batch, [B] float64 each, summed over their tokens: ``logps`` and
    ``scores`` (h), nats; ``lengths``, tokens. ``groups`` int64: prompts. ``field``: of the batch,
    which is the same on every token of a response."""

    logps: torch.Tensor
    scores: torch.Tensor
    lengths: torch.Tensor
    groups: torch.Tensor
    field: torch.Tensor


def responses_of(outputs: TokenOutputs, batch: TokenBatch, name: str) -> Responses:
    """Return the responses of ``batch``, with its per-token field ``name``."""
    _, index, counts = batch.rows.unique(return_inverse=True, return_counts=True)
    logprobs = outputs.logprobs.double()
    zeros = logprobs.new_zeros(len(counts))

    def added(values: torch.Tensor) -> torch.Tensor:
        return zeros.index_add(0, index, values)

    def shared(values: torch.Tensor) -> torch.Tensor:
        return added(values.double()) / counts  # whole numbers, which are exact

    per_token = batch.groups if len(batch.groups) else batch.rows
    return Responses(
        logps=added(logprobs),
        scores=added(logprobs - batch.fields["ref_logprobs"].double()),
        lengths=counts.double(),
        groups=shared(per_token).long(),
        field=shared(batch.fields[name]),
    )


@dataclass(frozen=True)
class DpoObjective(Objective):
    """A loss over the pairs of responses to one prompt, the mean over all pairs of the step.

    Per-token fields: ``ref_logprobs``, and ``ranks`` of the response. ``Sequences.groups`` names
    the prompts; each pair of unequal rank counts, so two responses make one pair. ``num_pairs``: of
    the step, all ranks. ``rpo_alpha``: weight of the NLL of the better response, its mean over
    tokens (iterative RPO, arXiv 2404.19733 eq. 2).
    """

    num_pairs: int
    loss: str = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0
    rpo_alpha: float = 0.0
    name: str = NAME
    aggregation: str = "seq-mean-token-sum"
    whole_groups: bool = True
    entropy_grad: bool | None = False
    fields: tuple[str, ...] = ("ref_logprobs", "ranks")

    def __call__(self, outputs: TokenOutputs, batch: TokenBatch) -> tuple[torch.Tensor, Metrics]:
        """Return the loss, and TRL's metrics: ``rewards/*`` are beta x the scores that the loss
        uses, and equal rewards count as wrong. ``<name>/moved``: mean |h| per token, nats."""
        found, loss = responses_of(outputs, batch, "ranks"), PAIR_LOSSES[self.loss]
        better, worse = is_preferred(found.field, found.groups).nonzero(as_tuple=True)
        scores = found.scores / found.lengths if loss.per_token else found.scores
        losses = loss.loss(scores[better] - scores[worse], self.beta, self.label_smoothing)
        nll = -(found.logps / found.lengths)[better]
        if self.rpo_alpha:  # 0 x an infinite NLL is no number
            losses = losses + self.rpo_alpha * nll
        total = losses.sum() / self.num_pairs
        rewards, moved = self.beta * scores.detach(), found.scores.detach()
        distance = (moved / found.lengths).abs()
        means = {
            f"{self.name}/loss": losses,
            "rewards/chosen": rewards[better],
            "rewards/rejected": rewards[worse],
            "rewards/accuracies": (rewards[better] > rewards[worse]).double(),
            "rewards/margins": rewards[better] - rewards[worse],
            "logps/chosen": found.logps[better],
            "logps/rejected": found.logps[worse],
            "length/chosen": found.lengths[better],
            "length/rejected": found.lengths[worse],
            f"{self.name}/moved": (distance[better] + distance[worse]) / 2,
            # Both less likely than at the start, though their distance grows.
            f"{self.name}/both_fell": ((moved[better] < 0) & (moved[worse] < 0)).double(),
            **({"nll_loss": nll} if self.rpo_alpha else {}),
        }
        sums = {name: values.detach().sum() / self.num_pairs for name, values in means.items()}
        sums["entropy"] = outputs.entropy.detach().double().sum() * batch.mean_weight
        return total.to(outputs.logprobs.dtype), Metrics(sums)


@dataclass(frozen=True)
class KtoObjective(Objective):
    """KTO, the mean over the responses of the step; each is desirable or not, by itself.

    Per-token fields: ``ref_logprobs``, and ``desirable`` (1 or 0) of the response. ``kl``: z, in
    nats, of the step (``reference_point``). ``counts``: desirable and other responses of the step,
    all ranks. ``weights``: of the two classes, in the loss and not in its denominator.
    """

    kl: float
    counts: tuple[int, int]
    beta: float = 0.1
    weights: tuple[float, float] = (1.0, 1.0)
    name: str = NAME
    aggregation: str = "seq-mean-token-sum"
    entropy_grad: bool | None = False
    fields: tuple[str, ...] = ("ref_logprobs", "desirable")

    def __call__(self, outputs: TokenOutputs, batch: TokenBatch) -> tuple[torch.Tensor, Metrics]:
        """Return the loss, and TRL's metrics: those of a class without responses in the step, and
        the margin without both, are absent."""
        found, total = responses_of(outputs, batch, "desirable"), sum(self.counts)
        desirable = found.field > 0.5
        losses = kto_losses(
            found.scores, desirable, kl=self.kl, beta=self.beta, weights=self.weights
        )
        loss = losses.sum() / total
        sums = {
            f"{self.name}/loss": loss.detach(),
            "kl": losses.new_tensor(self.kl * len(losses) / total),
            "entropy": outputs.entropy.detach().double().sum() * batch.mean_weight,
        }
        moved = found.scores.detach()
        sums[f"{self.name}/moved"] = (moved / found.lengths).abs().sum() / total
        rewards = self.beta * moved
        values = {"rewards": rewards, "logps": found.logps.detach(), "length": found.lengths}
        sides = {"chosen": (desirable, 1.0), "rejected": (~desirable, -1.0)}
        for (side, (mine, sign)), count in zip(sides.items(), self.counts, strict=True):
            if not count:
                continue
            sums |= {f"{name}/{side}": each[mine].sum() / count for name, each in values.items()}
            if all(self.counts):
                margin = sums.get("rewards/margins", 0.0)
                sums["rewards/margins"] = margin + sign * sums[f"rewards/{side}"]
        return loss.to(outputs.logprobs.dtype), Metrics(sums)

"""Objectives: ``objective(outputs, batch) -> (scalar, metrics)``. SFT and policy differ here only.

Axes: ``tokens`` = the loss tokens of one micro-batch, flat. Positions outside the loss mask are
never gathered, so whatever stands there (NaN, 1e9) cannot reach a loss.

The scalar of a micro-batch is a *sum* of already normalised terms: adding over micro-batches and
ranks gives the loss of the optimizer step. Metrics follow the same rule.

torch is imported where it computes, so that the process that only describes an objective to the
learner need not load it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

    from rlcore.algorithms.policy_loss import ClippedLoss


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """What the model says about the loss tokens: ``logprobs`` [tokens], ``entropy`` [tokens] or
    empty when the objective did not ask for it; both at the objective's temperature."""

    logprobs: torch.Tensor
    entropy: torch.Tensor


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """What is known about the loss tokens.

    ``weights`` [tokens]: share of each token in the loss. ``mean_weight``: 1 / loss tokens passed
    through the model in this optimizer step, all ranks. ``rows`` [tokens] int64: sequence of each
    token. ``fields``: [tokens] each, named in the objective's ``fields``.
    """

    weights: torch.Tensor
    mean_weight: float
    rows: torch.Tensor
    fields: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Metrics:
    """0-d tensors by name. ``sums`` add up over micro-batches and ranks to the global mean;
    ``maxes`` combine by maximum and are >= 0."""

    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    maxes: dict[str, torch.Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """What the learner minimises. Frozen and picklable: it travels to every rank."""

    @property
    def name(self) -> str:
        """Prefix of the metrics the learner adds: <name>/grad_norm, <name>/lr, ..."""
        ...

    @property
    def aggregation(self) -> str: ...
    @property
    def horizon(self) -> int | None: ...
    @property
    def temperature(self) -> float: ...
    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the per-token arrays needed beside token ids and loss mask."""
        ...

    @property
    def entropy_grad(self) -> bool | None:
        """None: no entropy wanted; False: as a metric; True: with gradient."""
        ...

    def rows_with_gradient(self, per_token: dict[str, list[np.ndarray]]) -> np.ndarray | None:
        """Return [rows] bool, False where a row's loss is 0 whatever the model says; None = all."""
        ...

    def __call__(
        self, outputs: TokenOutputs, batch: TokenBatch
    ) -> tuple[torch.Tensor, Metrics]: ...


@dataclass(frozen=True)
class SftObjective:
    """Negative log-likelihood of the loss tokens; the global token mean by default (SPEC D5)."""

    aggregation: str = "token-mean"
    horizon: int | None = None
    temperature: float = 1.0
    name: str = "sft"
    fields: tuple[str, ...] = ()
    entropy_grad: bool | None = None

    def rows_with_gradient(self, per_token: dict[str, list[np.ndarray]]) -> np.ndarray | None:
        """Every row teaches."""
        return None

    def __call__(self, outputs: TokenOutputs, batch: TokenBatch) -> tuple[torch.Tensor, Metrics]:
        """Return sum(weight x -logprob); metric ``sft/loss`` in nats per token."""
        loss = (batch.weights * -outputs.logprobs).sum()
        return loss, Metrics(sums={"sft/loss": loss.detach()})


@dataclass(frozen=True)
class PolicyObjective:
    """Clipped policy loss + kl_coef x KL - entropy_coef x entropy, all in one aggregation.

    Per-token fields: ``advantages``, ``old_logprobs`` (frozen at the start of the update phase),
    ``rollout_logprobs`` (the sampler's) and, when ``kl_coef`` > 0, ``ref_logprobs``.
    ``on_policy``: the step is the first and only one on its rollouts, so old = stop-gradient of the
    current log-probs and the ratio is exactly 1 (SPEC L5); ``old_logprobs`` is then not read.
    ``entropy_coef`` None leaves entropy out altogether, 0 reports it.
    ``skip_zero_advantage`` leaves rows of advantage 0 out of the forward pass when neither KL nor
    entropy gives them a gradient; normalisers still count them, so the gradient stays the same.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_dual: float | None = 3.0
    aggregation: str = "token-mean"
    horizon: int | None = None
    temperature: float = 1.0
    ratio_level: str = "token"
    kl_estimator: str = "k3"
    kl_coef: float = 0.0
    entropy_coef: float | None = 0.0
    importance_level: str = "none"
    importance_cap: float = 2.0
    on_policy: bool = False
    skip_zero_advantage: bool = False
    name: str = "actor"

    @property
    def fields(self) -> tuple[str, ...]:
        """Per-token arrays read."""
        old = () if self.on_policy else ("old_logprobs",)
        reference = ("ref_logprobs",) if self.kl_coef > 0 else ()
        return ("advantages", "rollout_logprobs", *old, *reference)

    @property
    def entropy_grad(self) -> bool | None:
        """Whether entropy is wanted (not None) and needs a gradient (True)."""
        return None if self.entropy_coef is None else self.entropy_coef != 0

    def rows_with_gradient(self, per_token: dict[str, list[np.ndarray]]) -> np.ndarray | None:
        """False for rows whose advantages are all 0, when ``skip_zero_advantage`` may drop them."""
        if not self.skip_zero_advantage or self.kl_coef > 0 or self.entropy_grad:
            return None
        return np.array([bool(np.any(row)) for row in per_token["advantages"]], dtype=bool)

    def __call__(self, outputs: TokenOutputs, batch: TokenBatch) -> tuple[torch.Tensor, Metrics]:
        """Return the weighted sum and verl's metric names (``actor/...``, ``training/...``)."""
        from rlcore.algorithms.correction import importance_weights
        from rlcore.algorithms.kl import kl_estimate
        from rlcore.algorithms.policy_loss import clipped_surrogate, importance_ratio

        logprobs = outputs.logprobs
        old = logprobs.detach() if self.on_policy else batch.fields["old_logprobs"]
        rollout = batch.fields["rollout_logprobs"]
        ratio = importance_ratio(self.ratio_level, logprobs, old)
        surrogate = clipped_surrogate(
            ratio,
            batch.fields["advantages"],
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            clip_dual=self.clip_dual,
        )
        correction = importance_weights(
            old, rollout, batch.rows, level=self.importance_level, cap=self.importance_cap
        )
        policy_loss = (batch.weights * correction * surrogate.loss).sum()
        loss = policy_loss
        sums = {"actor/pg_loss": policy_loss.detach()}
        if self.kl_coef > 0:
            kl = kl_estimate(logprobs, batch.fields["ref_logprobs"], self.kl_estimator)
            kl_loss = (batch.weights * kl).sum()
            loss = loss + self.kl_coef * kl_loss
            sums["actor/kl_loss"] = kl_loss.detach()
        if self.entropy_coef is not None:
            if self.entropy_coef != 0:
                loss = loss - self.entropy_coef * (batch.weights * outputs.entropy).sum()
            sums["actor/entropy"] = outputs.entropy.detach().sum() * batch.mean_weight
        if self.importance_level != "none":
            sums["training/importance_weight_mean"] = correction.sum() * batch.mean_weight
        health = _health(logprobs.detach(), ratio.detach(), surrogate, old, rollout, batch)
        return loss, Metrics(sums | health.sums, health.maxes)


def _health(
    logprobs: torch.Tensor,
    ratio: torch.Tensor,
    surrogate: ClippedLoss,
    old: torch.Tensor,
    rollout: torch.Tensor,
    batch: TokenBatch,
) -> Metrics:
    """How far the policy has moved, how often it is clipped, and whether the sampler agrees."""
    prob_gap = (old.exp() - rollout.exp()).abs()
    logprob_gap = (old - rollout).abs()
    means = {
        "actor/ppo_kl": old - logprobs,
        "actor/pg_clipfrac": surrogate.clipped,
        "actor/clip_ratio_low": surrogate.outside_low,
        "actor/clip_ratio_high": surrogate.clipped & ~surrogate.outside_low,
        "actor/pg_clipfrac_lower": surrogate.clipped_dual,
        "actor/ratio_mean": ratio,
        "training/rollout_probs_diff_mean": prob_gap,
        "training/rollout_logprobs_diff_mean": logprob_gap,
    }
    return Metrics(
        sums={
            name: value.to(ratio.dtype).sum() * batch.mean_weight for name, value in means.items()
        },
        maxes={
            "actor/ratio_max": ratio.max(),
            "training/rollout_probs_diff_max": prob_gap.max(),
            "training/rollout_logprobs_diff_max": logprob_gap.max(),
        },
    )

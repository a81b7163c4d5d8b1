"""Objectives: ``objective(outputs, batch) -> (scalar, metrics)``. SFT, policy, critic and reward
model differ here only. ``objective_types`` has the rules that they follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlcore.algorithms.objective_types import Metrics, Objective, TokenBatch, TokenOutputs

if TYPE_CHECKING:
    import torch

    from rlcore.algorithms.losses import ClippedLoss
    from schemas.algorithm import Rejection


@dataclass(frozen=True)
class SftObjective(Objective):
    """Negative log-likelihood of the loss tokens; the global token mean by default.

    Together with another objective it is an auxiliary language-model loss, such as that of PPO-ptx
    (arXiv 2203.02155 eq. 2).
    """

    aggregation: str = "token-mean"
    horizon: int | None = None
    temperature: float = 1.0
    name: str = "sft"

    def __call__(self, outputs: TokenOutputs, batch: TokenBatch) -> tuple[torch.Tensor, Metrics]:
        """Return sum(weight x -logprob); metric ``<name>/loss`` in nats per token."""
        loss = (batch.weights * -outputs.logprobs).sum()
        return loss, Metrics(sums={f"{self.name}/loss": loss.detach()})


@dataclass(frozen=True)
class ValueObjective(Objective):
    """A critic's clipped squared error, on a separate model.

    Per-token fields: ``returns`` and, with ``clip``, ``old_values`` (those of rollout time).
    """

    clip: float | None = 0.5
    aggregation: str = "token-mean"
    horizon: int | None = None
    name: str = "critic"
    head: str = "value"

    @property
    def fields(self) -> tuple[str, ...]:
        """Per-token arrays read."""
        return ("returns",) if self.clip is None else ("returns", "old_values")

    def __call__(self, outputs: TokenOutputs, batch: TokenBatch) -> tuple[torch.Tensor, Metrics]:
        """Return the weighted sum (with the 1/2) and verl's metrics ``<name>/vf_loss``, ..."""
        from rlcore.algorithms.losses import clipped_value_loss

        values, returns = outputs.values, batch.fields["returns"]
        # Without a clip the old values are not read, and not sent.
        old = values.detach() if self.clip is None else batch.fields["old_values"]
        losses, clipped = clipped_value_loss(values, returns, old, self.clip)
        loss = (batch.weights * losses).sum()
        sums = {
            "vf_loss": loss.detach(),
            "vf_clipfrac": clipped.to(values.dtype).sum() * batch.mean_weight,
            "vpred_mean": values.detach().sum() * batch.mean_weight,
        }
        return loss, Metrics(sums={f"{self.name}/{key}": value for key, value in sums.items()})


@dataclass(frozen=True)
class PreferenceObjective(Objective):
    """A reward model's pairwise loss over ranked responses (arXiv 2203.02155 eq. 1).

    Per-token fields, read at each sequence's last token: ``ranks`` (lower is better, equal is a
    tie) and ``pair_weights`` (``preference_loss.pair_weights`` over the whole mini-batch, which
    makes the loss a mean over prompts). ``Sequences.groups`` names the prompts. The loss mask is
    not used.
    """

    name: str = "reward_model"
    aggregation: str = "token-mean"
    head: str = "value"
    targets: str = "last"
    whole_groups: bool = True
    fields: tuple[str, ...] = ("ranks", "pair_weights")

    def __call__(self, outputs: TokenOutputs, batch: TokenBatch) -> tuple[torch.Tensor, Metrics]:
        """Return the loss; metrics ``<name>/loss`` and ``<name>/pair_accuracy``.

        The accuracy is weighted as the loss is: pairs within a prompt, then prompts. Equal scores
        count as wrong.
        """
        from rlcore.algorithms.losses import is_preferred, pairwise_loss

        scores, ranks, weights = outputs.values, *(batch.fields[name] for name in self.fields)
        loss = pairwise_loss(scores, ranks, batch.groups, weights)
        right = is_preferred(ranks, batch.groups) & (scores[:, None] > scores[None, :])
        accuracy = (weights[:, None] * right).sum()
        sums = {"loss": loss.detach(), "pair_accuracy": accuracy}
        return loss, Metrics(sums={f"{self.name}/{key}": value for key, value in sums.items()})


@dataclass(frozen=True)
class PolicyObjective(Objective):
    """Policy loss + kl_coef x KL - entropy_coef x entropy, in one aggregation, + nll_coef x NLL.

    Per-token fields: ``advantages``; ``old_logprobs`` (frozen at the start of the update phase, of
    ratios and importance weights alike); ``rollout_logprobs`` (the sampler's); with a KL from
    log-probs ``ref_logprobs``; with ``nll_coef`` the ``nll_weights``.

    ``policy_loss``: a name of ``policy_loss.LOSSES`` or of the user's function (``plugins``).
    ``ratio_level`` "group" (GEPO) measures against ``group_log_expectation``, the log of the
    sampler's expected sequence probability in the prompt's group on every token, instead of
    ``old_logprobs``, which is then not read. ``kl_estimator`` "full": the exact KL to the
    reference that the learner itself holds. ``nll_coef``: weight of the positive-example loss
    (VAPO, arXiv 2504.05118 section 4.3), sum of ``nll_weights`` x -logprob, the weights being
    1 / tokens of correct responses in the mini-batch on those and 0 elsewhere.

    ``on_policy``: the step is the first and only one on its rollouts, so old = stop-gradient of the
    current log-probs and the ratio is exactly 1; ``old_logprobs`` is then not read. ``bypass``: old
    is the sampler's log-prob, in every step, and ``old_logprobs`` is not read either.
    ``importance_*`` and ``reject``: the weight of ``corrections.correction`` on the policy loss.
    ``entropy_coef`` None leaves entropy out altogether, 0 reports it.
    ``skip_zero_advantage`` leaves rows of advantage 0 out of the forward pass when nothing else
    gives them a gradient; normalisers still count them, so the gradient stays the same.
    """

    policy_loss: str = "clip"
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
    nll_coef: float = 0.0
    importance_level: str = "none"
    importance_cap: float = 2.0
    importance_mode: str = "truncate"
    importance_low: float | None = None
    reject: tuple[Rejection, ...] = ()
    bypass: bool = False
    on_policy: bool = False
    skip_zero_advantage: bool = False
    name: str = "actor"

    @property
    def fields(self) -> tuple[str, ...]:
        """Per-token arrays read."""
        wanted = {
            "advantages": True,
            "rollout_logprobs": True,
            "old_logprobs": not (self._by_group or self.bypass or self.on_policy),
            "group_log_expectation": self._by_group,
            "ref_logprobs": self.kl_coef > 0 and not self.full_kl,
            "nll_weights": self.nll_coef > 0,
        }
        return tuple(name for name, needed in wanted.items() if needed)

    @property
    def entropy_grad(self) -> bool | None:
        """Whether entropy is computed (not None) and whether with a gradient (True)."""
        return None if self.entropy_coef is None else self.entropy_coef != 0

    @property
    def full_kl(self) -> bool:
        """Whether the KL of whole distributions is in the loss."""
        return self.kl_coef > 0 and self.kl_estimator == "full"

    @property
    def _by_group(self) -> bool:
        return self.ratio_level == "group"

    def denominator(self, logprobs: torch.Tensor, fields: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the log-probs [targets] (nats) that the ratio is measured against."""
        if self._by_group:
            return fields["group_log_expectation"]
        if self.bypass:
            return fields["rollout_logprobs"]
        # In the only step the ratio is 1, and its gradient that of the log-prob.
        return logprobs.detach() if self.on_policy else fields["old_logprobs"]

    def rows_with_gradient(self, per_token: dict[str, list[np.ndarray]]) -> np.ndarray | None:
        """False for rows whose advantages are all 0, when ``skip_zero_advantage`` may drop them."""
        # KL and entropy give every row a gradient, whatever its advantage.
        if not self.skip_zero_advantage or self.kl_coef > 0 or self.entropy_grad:
            return None
        if ":" in self.policy_loss:  # a user's loss may have a gradient where the advantage is 0
            return None
        live = np.zeros(len(per_token["advantages"]), dtype=bool)
        for name in ("advantages", "nll_weights")[: 1 + (self.nll_coef > 0)]:
            live |= np.array([bool(np.any(row)) for row in per_token[name]], dtype=bool)
        return live

    def __call__(self, outputs: TokenOutputs, batch: TokenBatch) -> tuple[torch.Tensor, Metrics]:
        """Return the weighted sum and verl's metric names (``<name>/...``, ``training/...``)."""
        from rlcore.algorithms.corrections import correction, correction_sums
        from rlcore.algorithms.losses import RATIOS, policy_loss

        logprobs, rollout = outputs.logprobs, batch.fields["rollout_logprobs"]
        base = self.denominator(logprobs, batch.fields)
        # Group ratios are measured against the sampler, so no correction for it is left: with
        # ``old`` its own log-probs the importance weights are 1.
        old = rollout if self._by_group else base
        ratio = RATIOS[self.ratio_level](logprobs, base, batch.rows)
        clipped = policy_loss(
            self.policy_loss,
            ratio,
            logprobs,
            batch.fields["advantages"],
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            clip_dual=self.clip_dual,
        )
        # Two ratios with two purposes: the clipped one bounds the step away from ``old``; this one
        # corrects for a sampler that is not ``old``.
        corrected = correction(
            old,
            rollout,
            batch.rows,
            level=self.importance_level,
            cap=self.importance_cap,
            mode=self.importance_mode,
            low=self.importance_low,
            reject=self.reject,
        )
        loss = (batch.weights * corrected.weights * clipped.loss).sum()
        sums = {f"{self.name}/pg_loss": loss.detach()}
        for key, coef, term in self._extra_terms(outputs, batch):
            loss = loss + coef * term
            sums[f"{self.name}/{key}"] = term.detach()
        if self.entropy_coef is not None:
            # At 0 entropy has no graph, and is a metric alone (``entropy_grad``).
            if self.entropy_coef != 0:
                loss = loss - self.entropy_coef * (batch.weights * outputs.entropy).sum()
            entropy = outputs.entropy.detach().sum() * batch.mean_weight
            sums[f"{self.name}/entropy"] = entropy
        if self.importance_level != "none":
            mean = corrected.weights.sum() * batch.mean_weight
            sums["training/importance_weight_mean"] = mean
        health = _health(self.name, logprobs.detach(), ratio.detach(), clipped, old, batch)
        # Where old is the sampler's own log-prob there is no gap to measure.
        exact = self._by_group or self.bypass
        gap = Metrics() if exact else _sampler_gap(old, rollout, batch)
        corrects = self.importance_level != "none" or self.reject
        weights = correction_sums(corrected, old, batch) if corrects else Metrics()
        return loss, Metrics(
            sums | health.sums | gap.sums | weights.sums, health.maxes | gap.maxes | weights.maxes
        )

    def _extra_terms(
        self, outputs: TokenOutputs, batch: TokenBatch
    ) -> list[tuple[str, float, torch.Tensor]]:
        """(metric, coefficient, loss) of each term that is added to the policy loss."""
        from rlcore.algorithms.kl import kl_estimate

        terms = []
        if self.kl_coef > 0:
            kl = outputs.kl
            if not self.full_kl:
                reference = batch.fields["ref_logprobs"]
                kl = kl_estimate(outputs.logprobs, reference, self.kl_estimator)
            terms.append(("kl_loss", self.kl_coef, (batch.weights * kl).sum()))
        if self.nll_coef > 0:
            nll = (batch.fields["nll_weights"] * -outputs.logprobs).sum()
            terms.append(("positive_nll", self.nll_coef, nll))
        return terms


def _health(
    name: str,
    logprobs: torch.Tensor,
    ratio: torch.Tensor,
    clipped: ClippedLoss,
    old: torch.Tensor,
    batch: TokenBatch,
) -> Metrics:
    """How far the policy has moved and how often it is clipped, as means over tokens."""
    means = {
        "ppo_kl": old - logprobs,
        "pg_clipfrac": clipped.clipped,
        "clip_ratio_low": clipped.outside_low,
        "clip_ratio_high": clipped.clipped & ~clipped.outside_low,
        "pg_clipfrac_lower": clipped.clipped_dual,
        "ratio_mean": ratio,
    }
    return Metrics(
        sums={
            f"{name}/{key}": value.to(ratio.dtype).sum() * batch.mean_weight
            for key, value in means.items()
        },
        maxes={f"{name}/ratio_max": ratio.max()},
    )


def _sampler_gap(old: torch.Tensor, rollout: torch.Tensor, batch: TokenBatch) -> Metrics:
    """Whether the sampler agrees with the learner."""
    gaps = {"probs": (old.exp() - rollout.exp()).abs(), "logprobs": (old - rollout).abs()}
    prefix, share = "training/rollout", batch.mean_weight
    return Metrics(
        sums={f"{prefix}_{key}_diff_mean": gap.sum() * share for key, gap in gaps.items()},
        maxes={f"{prefix}_{key}_diff_max": gap.max() for key, gap in gaps.items()},
    )

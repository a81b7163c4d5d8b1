"""Corrections of the policy loss for a sampler that is not the policy before the update, because of
its numerics or its older weights: importance weights, masks, and what is recorded of both.

All of it is computed from l = old - rollout (nats per token): e^l is old / sampler. Nothing here
has a gradient, and a token of weight 0 still counts in every denominator: leaving it out would make
the step of those that are left larger. Axes: R responses with a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlcore.algorithms.losses import LOG_RATIO_LIMIT
from rlcore.algorithms.objective_types import Metrics, TokenBatch

if TYPE_CHECKING:
    import torch

    from schemas.algorithm import Rejection

PREFIX = "rollout_corr/"
SUMS = "rollout_corr_sums/"  # recorded per optimizer step, for ``correction_metrics`` alone


@dataclass(frozen=True, slots=True)
class Correction:
    """What multiplies the policy loss of each token, [tokens] each, without gradient.

    ``ratio``: e^l, or e^S of the response's sum S at level "sequence", before any bound; 1 at level
    "none". ``kept``: bool, False where a mask took the token. ``weights``: the ratio within
    ``bounds``, lowest and highest, and 0 where not kept.
    """

    level: str
    bounds: tuple[float | None, float | None]
    ratio: torch.Tensor
    kept: torch.Tensor
    weights: torch.Tensor


def correction(
    old_logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    rows: torch.Tensor,
    *,
    level: str,
    cap: float,
    mode: str = "truncate",
    low: float | None = None,
    reject: Sequence[Rejection] = (),
) -> Correction:
    """Return the product of one weight and any masks, of log-probs [tokens].

    ``rows`` [tokens] int64: the response of each token, any ids; responses are never split. Bounds
    are inclusive and in units of old / sampler; ``low`` None is no bound. ``mode`` "truncate":
    weights are clamped to them (truncated importance sampling, verl ``rollout_corr_helper``);
    "mask": a ratio outside gives 0 (IcePop, arXiv 2510.18855; of whole responses TRL's
    ``sequence_mask``). ``reject``: responses that are masked whole, by the ratio before any bound.
    """
    import torch

    with torch.no_grad():
        log_ratio = old_logprobs.detach() - rollout_logprobs
        bounds = (None, None) if level == "none" else (low, cap)
        ratio = _ratio(log_ratio, rows, level)
        kept, weights = torch.ones_like(log_ratio, dtype=torch.bool), ratio
        if mode == "mask":
            kept = _within(ratio, *bounds)
        elif level != "none":
            # Without ``low`` from above only: a large weight adds variance, a small one does not.
            weights = ratio.clamp(min=low, max=cap)
        for rejection in reject:
            kept = kept & keep_mask(log_ratio, rows, rejection)
        return Correction(level, bounds, ratio, kept, (weights * kept).to(log_ratio.dtype))


def keep_mask(log_ratio: torch.Tensor, rows: torch.Tensor, rejection: Rejection) -> torch.Tensor:
    """Return [tokens] bool, equal on all tokens of a response: whether ``rejection`` keeps it.

    ``log_ratio`` [tokens]: l, in nats. "geometric": exp(mean of l) is within the bounds; "k3": the
    mean of e^l - 1 - l is at most ``high`` (nats); "veto": e^l of each token is within the bounds
    (verl's ``seq_mean_k1`` of 1 / e^l, and ``seq_mean_k3``).
    """
    index, lengths_R = _responses(rows)
    exact = log_ratio.double()
    if rejection.statistic == "veto":
        inside = _within(_exp(exact), rejection.low, rejection.high)
        kept_R = _sums((~inside).double(), index, len(lengths_R)) == 0
    elif rejection.statistic == "k3":
        mean_R = _sums(_k3(exact), index, len(lengths_R)) / lengths_R
        kept_R = _within(mean_R, None, rejection.high)
    else:
        mean_R = _sums(exact, index, len(lengths_R)) / lengths_R
        kept_R = _within(_exp(mean_R), rejection.low, rejection.high)
    return kept_R[index]


def correction_sums(found: Correction, old_logprobs: torch.Tensor, batch: TokenBatch) -> Metrics:
    """Return what is recorded of the correction ``found`` of a micro-batch.

    Means over tokens under verl's names; ``SUMS`` hold what is divided once the step is complete
    (``correction_metrics``), each a sum times ``mean_weight``. Weights are counted by token at
    level "token", else by response.
    """
    import torch

    advantages = batch.fields["advantages"]
    index, lengths_R = _responses(batch.rows)
    exact = (old_logprobs.detach() - batch.fields["rollout_logprobs"]).double()
    log_R = _sums(exact, index, len(lengths_R))
    kept = found.kept.double()
    kept_R = (_sums(kept, index, len(lengths_R)) > 0).double()
    # A weight of a response is on each of its tokens: its share of every token makes one.
    share = 1.0 if found.level == "token" else 1.0 / lengths_R[index]
    weights, (low, high) = found.weights.double(), found.bounds
    counted = {
        "units": torch.ones_like(kept) * share,
        "weight": weights * share,
        "weight_square": weights.square() * share,
        "above": ~_within(found.ratio, None, high) * share,
        "below": ~_within(found.ratio, low, None) * share,
        "rows": torch.ones_like(kept_R),
        "kept_rows": kept_R,
        "kept_row_tokens": kept_R * lengths_R,
        "log_ppl_diff": -log_R / lengths_R,
        "chi2_seq": _exp(2 * log_R) - 1,
        "chi2_seq_clamped": (2 * log_R).abs() > LOG_RATIO_LIMIT,
        "positive": (advantages > 0).double(),
        "positive_masked": (advantages > 0) * (1 - kept),
        "negative": (advantages < 0).double(),
        "negative_masked": (advantages < 0) * (1 - kept),
    }
    means = {
        "kl": -exact,
        "k3_kl": _k3(exact),
        "chi2_token": _exp(2 * exact) - 1,
        "rollout_rs_masked_fraction": 1 - kept,
    }
    named = {SUMS + key: value for key, value in counted.items()}
    named |= {PREFIX + key: value for key, value in means.items()}
    return Metrics(
        sums={key: value.sum() * batch.mean_weight for key, value in named.items()},
        maxes={f"{PREFIX}rollout_is_max": weights.max()},
    )


def correction_metrics(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what the sums of ``correction_sums`` say, as means over an update's optimizer steps.

    ``rollout_is_eff_sample_size``: (sum w)^2 / (n sum w^2), a fraction of the n tokens or
    responses; left out where every weight is 0. ``kept_length_ratio``: mean length of the responses
    that keep a token over that of all; below 1 the masks select short ones.
    """
    parts = [_step_metrics(step) for step in steps]
    names = dict.fromkeys(name for part in parts for name in part)
    found = {name: [part[name] for part in parts if name in part] for name in names}
    return {PREFIX + name: sum(values) / len(values) for name, values in found.items()}


def _step_metrics(step: Mapping[str, float]) -> dict[str, float]:
    sums = {name.removeprefix(SUMS): v for name, v in step.items() if name.startswith(SUMS)}
    if not sums:
        return {}
    mean, square = (sums[name] / sums["units"] for name in ("weight", "weight_square"))
    rows, kept_rows = sums["rows"], sums["kept_rows"]
    metrics = {
        "rollout_is_mean": mean,
        "rollout_is_std": max(0.0, square - mean**2) ** 0.5,
        "rollout_is_ratio_fraction_high": sums["above"] / sums["units"],
        "rollout_is_ratio_fraction_low": sums["below"] / sums["units"],
        "rollout_rs_seq_masked_fraction": 1 - kept_rows / rows,
        "log_ppl_diff": sums["log_ppl_diff"] / rows,
        "chi2_seq": sums["chi2_seq"] / rows,
        "chi2_seq_clamped_fraction": sums["chi2_seq_clamped"] / rows,
    }
    if square > 0:
        metrics["rollout_is_eff_sample_size"] = mean**2 / square
    if kept_rows > 0:
        # The sums are per token, so that the mean length of all responses is 1 / rows.
        metrics["kept_length_ratio"] = sums["kept_row_tokens"] / kept_rows * rows
    for sign in ("positive", "negative"):
        if sums[sign] > 0:
            metrics[f"masked_fraction_{sign}"] = sums[f"{sign}_masked"] / sums[sign]
    return metrics


def _ratio(log_ratio: torch.Tensor, rows: torch.Tensor, level: str) -> torch.Tensor:
    """e^l per token, or e^S of the response's sum in float64; 1 at level "none"."""
    if level == "none":
        return log_ratio.new_ones(log_ratio.shape)
    if level == "token":
        return _exp(log_ratio)
    index, lengths_R = _responses(rows)
    return _exp(_sums(log_ratio, index, len(lengths_R)))[index]


def _responses(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The place among R of each token's response, and the lengths [R] (tokens)."""
    _, index, lengths_R = rows.unique(return_inverse=True, return_counts=True)
    return index, lengths_R


def _sums(values: torch.Tensor, index: torch.Tensor, count: int) -> torch.Tensor:
    """Sums [R] of ``values`` [tokens], in float64: thousands of float32 additions would round by
    as much as a bound of .999 to 1.001 leaves."""
    exact = values.double()
    return exact.new_zeros(count).index_add_(0, index, exact)


def _exp(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _k3(log_ratio: torch.Tensor) -> torch.Tensor:
    bounded = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return bounded.exp() - 1 - bounded


def _within(values: torch.Tensor, low: float | None, high: float | None) -> torch.Tensor:
    inside = ~values.isnan()
    if low is not None:
        inside = inside & (values >= low)
    if high is not None:
        inside = inside & (values <= high)
    return inside

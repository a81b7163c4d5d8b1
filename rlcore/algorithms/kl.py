"""Per-token KL estimators of KL(policy || reference) from two log-probs of the sampled token."""

import torch

from schemas.errors import UserError, did_you_mean

LOG_RATIO_LIMIT = 20.0  # |ref - lp| inside exp: e^20 is the largest ratio anyone can use
K3_LIMIT = 10.0  # nats; bounds one token's share of the loss (verl core_algos.kl_penalty_forward)
ESTIMATORS = ("k1", "abs", "k2", "k3", "k1+", "k3+")


def kl_estimate(logprobs: torch.Tensor, ref_logprobs: torch.Tensor, estimator: str) -> torch.Tensor:
    """Return the estimate in nats, of the shape of ``logprobs``. With d = lp - ref:

    k1 = d; abs = |d|; k2 = d^2 / 2; k3 = e^-d + d - 1 (http://joschu.net/blog/kl-approx.html).

    As a *loss* only k2 has the gradient of KL(policy || reference) in expectation: the gradient of
    k1 averages to 0, that of k3 to the reverse KL's (SPEC K2). "k1+" and "k3+" therefore show the
    base value and pass k2's gradient (straight through). Raises ``UserError`` for another name.
    """
    if estimator not in ESTIMATORS:
        raise UserError(
            f"kl.estimator = '{estimator}' is unknown; use one of {', '.join(ESTIMATORS)}"
            f"{did_you_mean(estimator, ESTIMATORS)}"
        )
    if estimator.endswith("+"):
        with torch.no_grad():
            value = kl_estimate(logprobs, ref_logprobs, estimator[:-1])
        k2 = kl_estimate(logprobs, ref_logprobs, "k2")
        return value + (k2 - k2.detach())
    difference = logprobs - ref_logprobs
    if estimator == "k1":
        return difference
    if estimator == "abs":
        return difference.abs()
    if estimator == "k2":
        return 0.5 * difference.square()
    negative = (-difference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (torch.exp(negative) - negative - 1.0).clamp(-K3_LIMIT, K3_LIMIT)

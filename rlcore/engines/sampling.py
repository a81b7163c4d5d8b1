"""Drawing one token per row, as pure functions of logits and uniforms.

Axes: B rows, V vocabulary.
"""

import torch

from rlcore.engines.types import Sampling


def processed_logprobs(logits_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the log-probs sampled from: logits / temperature, top_k, then top_p, renormalised.

    float32 [B, V]; dropped tokens are -inf. Temperature 0 gives the model's own log-probs, whose
    arg max is the greedy token. The order is vLLM's (``apply_top_k_top_p`` after temperature).
    """
    return _kept(logits_BV, sampling).log_softmax(-1)


def draw(
    logits_BV: torch.Tensor, sampling: Sampling, uniforms_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids [B] and their log-probs float32 [B], as ``choose`` and
    ``processed_logprobs`` have them; when greedy the likeliest, and the uniforms are not read."""
    if sampling.temperature == 0.0:
        logprobs_BV = processed_logprobs(logits_BV, sampling)
        chosen_B = logprobs_BV.argmax(-1)
        return chosen_B, logprobs_BV.gather(-1, chosen_B[:, None])[:, 0]
    probs_BV = _kept(logits_BV, sampling).softmax(-1)
    chosen_B = _inverse_cdf(probs_BV, uniforms_B)
    return chosen_B, probs_BV.gather(-1, chosen_B[:, None])[:, 0].log()


def choose(logprobs_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    """Return token ids [B]: the inverse CDF of each row at its uniform in [0, 1).

    One uniform per token, so a row's stream does not depend on the vocabulary or on its
    neighbours. float64 sums: in float32 a large vocabulary's tail would round away. A token of
    probability 0 is never chosen.
    """
    return _inverse_cdf(logprobs_BV.exp(), uniforms_B)


def _inverse_cdf(probs_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    cdf_BV = probs_BV.cumsum(-1, dtype=torch.float64)
    at_B1 = uniforms_B.double()[:, None] * cdf_BV[:, -1:]
    return torch.searchsorted(cdf_BV, at_B1, right=True)[:, 0]


def _kept(logits_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return logits / temperature, float32, -inf where top_k or top_p drops the token; the model's
    own at temperature 0."""
    logits_BV = logits_BV.float()
    if sampling.temperature == 0.0:
        return logits_BV
    if sampling.temperature != 1.0:
        logits_BV = logits_BV / sampling.temperature
    if 0 < sampling.top_k < logits_BV.shape[-1]:
        kth_B1 = logits_BV.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < kth_B1, -torch.inf)
    if sampling.top_p < 1.0:
        sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True)
        probs_BV = sorted_BV.softmax(-1)
        before_BV = probs_BV.cumsum(-1) - probs_BV  # mass ranked above the token
        dropped_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
        dropped_BV.scatter_(-1, order_BV, before_BV >= sampling.top_p)
        logits_BV = logits_BV.masked_fill(dropped_BV, -torch.inf)
    return logits_BV

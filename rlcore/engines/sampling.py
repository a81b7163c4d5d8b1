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
    logits_BV = logits_BV.float()
    if sampling.temperature == 0.0:
        return logits_BV.log_softmax(-1)
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
    return logits_BV.log_softmax(-1)


def choose(logprobs_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    """Return token ids [B]: the inverse CDF of each row at its uniform in [0, 1).

    One uniform per token, so a row's stream does not depend on the vocabulary or on its
    neighbours. float64 sums: in float32 a large vocabulary's tail would round away. A token of
    probability 0 is never chosen.
    """
    cdf_BV = logprobs_BV.exp().cumsum(-1, dtype=torch.float64)
    at_B1 = uniforms_B.double()[:, None] * cdf_BV[:, -1:]
    return torch.searchsorted(cdf_BV, at_B1, right=True)[:, 0]

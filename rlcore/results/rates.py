"""Rates of training: tokens/s of a run and per GPU, and how much of its devices it uses."""

from math import ceil

FLOPS = "model_flops"  # <role>/model_flops: what the tokens of an update need


def whole_gpus(shares: float) -> int:
    """Return the GPUs that ``shares`` of them take; 1 for none: a machine without GPUs is one
    device."""
    return max(1, ceil(shares - 1e-9))


def token_rates_of(tokens: float, seconds: float, gpus: int) -> dict[str, float]:
    """Return the tokens/s of all devices, and per GPU as verl's ``perf/throughput``."""
    total = tokens / seconds
    return {"perf/total_tokens_per_s": total, "perf/throughput": total / gpus}


def utilisation(role: str, flops: float, seconds: float, peak: float | None) -> dict[str, float]:
    """Return ``perf/mfu/<role>``: ``flops`` in ``seconds`` as a share of ``peak`` FLOP/s of all
    devices; nothing where no peak is known or nothing was done."""
    if peak is None or not flops or seconds <= 0:
        return {}
    return {f"perf/mfu/{role}": flops / seconds / peak}

"""Rates mean what verl's mean, so that a figure of one can be held against the other."""

import pytest

from rlcore.results.metrics import token_rates_of, utilisation, whole_gpus


def test_throughput_is_per_gpu_and_the_total_is_not() -> None:
    """Eight GPUs that each do 1,000 tokens/s must not read as one that does 8,000."""
    rates = token_rates_of(tokens=24_000, seconds=3.0, gpus=8)
    assert rates == {"perf/total_tokens_per_s": 8000.0, "perf/throughput": 1000.0}


def test_throughput_of_the_published_run() -> None:
    """1,702 tokens/s on one GPU: 64 sequences of 353.7 tokens in 13.3 s."""
    rate = token_rates_of(tokens=22_637, seconds=13.30, gpus=1)["perf/throughput"]
    assert rate == pytest.approx(1702, abs=0.5)


@pytest.mark.parametrize(
    ("shares", "gpus"), [(0.0, 1), (0.6, 1), (0.3 + 0.3 + 0.4, 1), (1.2, 2), (8.0, 8)]
)
def test_shares_of_a_gpu_add_up_to_whole_ones(shares: float, gpus: int) -> None:
    assert whole_gpus(shares) == gpus


def test_utilisation_is_a_share_of_all_devices() -> None:
    assert utilisation("actor", 6e12, 2.0, 1e13) == {"perf/mfu/actor": 0.3}


@pytest.mark.parametrize(("flops", "seconds", "peak"), [(1e9, 1.0, None), (0.0, 1.0, 1e9)])
def test_what_is_not_known_is_no_zero(flops: float, seconds: float, peak: float | None) -> None:
    """An unknown device or an update that was not made has no utilisation; 0 would be a figure."""
    assert utilisation("actor", flops, seconds, peak) == {}

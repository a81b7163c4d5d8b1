"""Clipped ratios: noise as wide as the clip range is reported, the clips of a run that learns are
not."""

import numpy as np
import pytest
import torch

from rlcore.algorithms.losses import RATIOS, clipped_surrogate
from rlcore.diagnostics.measures import CLIPPED_BY_NOISE
from schemas.algorithm import Algorithm
from tests.rlcore.diagnostics.streams import QUICKSTARTS, RECORDED, Metrics, broken, recipe, watch

NOISES = {
    "one offset": lambda rng, rows: np.full(rows, 6e-4),
    "either way": lambda rng, rows: rng.choice([-6e-4, 6e-4], rows),
    "normal": lambda rng, rows: rng.normal(0.0, 6e-4, rows),
    "much wider": lambda rng, rows: rng.normal(0.0, 0.05, rows),
}


def _clipped_by(noise: np.ndarray, advantages: np.ndarray, rule: Algorithm) -> float:
    """The clip fraction of the real loss where log-ratios are ``noise``, one token a row."""
    logprobs, rows = torch.from_numpy(noise), torch.arange(len(noise))
    ratio = RATIOS[rule.ratio_level](logprobs, torch.zeros_like(logprobs), rows)
    loss = clipped_surrogate(
        ratio,
        torch.from_numpy(advantages),
        clip_low=rule.clip_low,
        clip_high=rule.clip_high,
        clip_dual=rule.clip_dual,
    )
    return float(loss.clipped.double().mean())


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("first", [True, False])
def test_noise_in_gspos_clip_range_is_reported(noise: str, first: bool) -> None:
    """bfloat16's rounding of 6e-4 per token clips a quarter to a half of groups that differ, and
    no more however wide it is; what later steps clip says nothing where the first had no row."""
    config, rng = recipe("gsm8k-gspo"), np.random.default_rng(0)
    rows = 4096
    shares = []

    def noisy(iteration: int, metrics: Metrics) -> Metrics:
        advantages = rng.choice([-1.0, 1.0], rows)
        shares.append(_clipped_by(NOISES[noise](rng, rows), advantages, config.rl.algorithm))
        known = {"actor/pg_clipfrac_first_step": shares[-1]} if first else {}
        return {"actor/pg_clipfrac": shares[-1], **known}

    _, findings = watch(config, broken(noisy, start=10, end=29))
    assert min(shares) > 0.25
    assert max(shares) < 0.55
    if not first:
        assert findings == []
        return
    (found,) = findings
    assert (found.check, found.began) == ("everything_clipped", 11)
    assert "rl.update.old_logprobs: own" in found.remedy


def test_an_offset_along_the_advantage_clips_everything() -> None:
    rule = recipe("gsm8k-gspo").rl.algorithm
    assert _clipped_by(np.full(64, 6e-4), np.ones(64), rule) == 1.0


@pytest.mark.parametrize("suffix", sorted({*QUICKSTARTS} - {"-gspo", "-gepo"}))
def test_noise_is_far_below_the_clips_of_token_ratios(suffix: str) -> None:
    """Rounding of .05 nats, the widest that bfloat16 kernels show on average."""
    rule, rng = recipe(f"quickstart{suffix}").rl.algorithm, np.random.default_rng(0)
    noise, advantages = rng.normal(0.0, 0.05, 4096), rng.choice([-1.0, 1.0], 4096)
    assert _clipped_by(noise, advantages, rule) < CLIPPED_BY_NOISE / 100


@pytest.mark.parametrize("suffix", RECORDED)
def test_clips_of_real_runs_are_left_alone(suffix: str) -> None:
    """GSPO's own steps move most sequences by more than its clip range; GEPO clips on policy."""
    names = ("actor/pg_clipfrac", "actor/pg_clipfrac_first_step")
    recorded: list[Metrics] = [dict(zip(names, row, strict=True)) for row in RECORDED[suffix]]

    def real(iteration: int, metrics: Metrics) -> Metrics:
        return recorded[(iteration - 10) % len(recorded)]

    stream = broken(real, start=10, end=60)
    assert watch(recipe(f"quickstart{suffix}"), stream) == ([], [])

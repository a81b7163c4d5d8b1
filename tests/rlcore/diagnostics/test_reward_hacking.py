"""A score that drifts away from the verifier is reported; noise and learning are not.

Batches are drawn as RL draws them: prompts differ in difficulty and in how the reward likes them,
so the rows of a prompt are alike.
"""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rlcore.diagnostics.watch import Finding, diagnose
from rlcore.rl.metrics import VERIFIER_CORRELATION, verdict_correlation
from tests.rlcore.diagnostics.streams import Metrics, healthy, recipe, watch

SIZES = [(16, 8), (64, 8), (512, 1)]  # prompts, samples


def drawn(
    accuracy: float, honesty: float, rng: np.random.Generator, size: tuple[int, int] = (64, 8)
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and verdicts of a batch; ``honesty``: what a right answer adds to the score,
    in standard deviations of the rest."""
    spread = 2.0
    easy = rng.beta(spread * accuracy, spread * (1 - accuracy), size=(size[0], 1))
    correct = rng.random(size) < easy
    liked = rng.normal(0, 0.7, size=(size[0], 1)) + rng.normal(0, 0.7, size=size)
    return (honesty * correct + liked).ravel(), correct.ravel()


def run(
    seed: int, honesty: np.ndarray, accuracy: np.ndarray, size: tuple[int, int] = (64, 8)
) -> list[Finding]:
    """Return the findings on hacking of a run with those values per iteration."""
    rng = np.random.default_rng(seed)
    stream: list[Metrics] = []
    for metrics, h, a in zip(healthy(len(honesty) - 1, seed), honesty, accuracy, strict=True):
        scores, correct = drawn(a, h, rng, size)
        batch = {"critic/score/mean": float(scores.mean()), "critic/accuracy": correct.mean()}
        agreement = verdict_correlation(scores, correct)
        if agreement is not None:
            batch[VERIFIER_CORRELATION] = agreement
        stream.append({**metrics, **batch} if "critic/accuracy" in metrics else metrics)
    prompts, samples = size
    name = "quickstart" if samples > 1 else "quickstart-rlhf"
    config = recipe(name, rl__rollout__prompts=prompts, rl__rollout__samples=samples)
    _, found = watch(config, stream)
    return [finding for finding in found if finding.check == "reward_hacking"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("honesty", [0.0, 0.5, 2.0])
def test_stationary_noise_is_left_alone(honesty: float, size: tuple[int, int]) -> None:
    for seed in range(10):
        assert run(seed, np.full(101, honesty), np.full(101, 0.6), size) == []


@pytest.mark.parametrize("size", SIZES)
def test_a_policy_that_learns_is_left_alone(size: tuple[int, int]) -> None:
    """From 50 to 97 %: few wrong answers are left, and the reward ranks as well as before."""
    for seed in range(10):
        assert run(seed, np.full(101, 1.5), np.linspace(0.5, 0.97, 101), size) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_drift_is_reported_once(seed: int) -> None:
    """Accuracy stays: only the ranking of the responses shows what the reward has become."""
    honesty = np.concatenate([np.full(31, 1.5), np.linspace(1.5, -0.5, 40), np.full(30, -0.5)])
    (found,) = run(seed, honesty, np.full(101, 0.6))
    assert 35 <= found.began <= 75
    assert "reward and verifier disagree more and more: the rank correlation" in found.message
    assert "times what noise explains" in found.message


def test_a_collapse_is_reported_by_its_accuracy() -> None:
    """With no right answer left there is nothing to correlate with."""
    accuracy = np.concatenate([np.full(31, 0.6), np.full(70, 0.005)])
    rng = np.random.default_rng(0)
    stream: list[Metrics] = []
    for iteration, (metrics, share) in enumerate(zip(healthy(), accuracy, strict=True)):
        scores, correct = drawn(share, 1.5, rng)
        batch = {"critic/score/mean": 0.05 * iteration, "critic/accuracy": float(correct.mean())}
        agreement = verdict_correlation(scores, correct)
        if agreement is not None:
            batch[VERIFIER_CORRELATION] = agreement
        stream.append({**metrics, **batch} if iteration else metrics)
    _, found = watch(recipe(), stream)
    (hacking,) = [finding for finding in found if finding.check == "reward_hacking"]
    assert "below its best while the score still rises" in hacking.message


@pytest.mark.parametrize("run", ["seed-0", "seed-7", "seed-11"])
def test_recorded_runs_whose_score_is_the_verdict_are_left_alone(run: str) -> None:
    """``quickstart_runs.csv`` (``test_stall``): their reward pays a right answer 1, else 0."""
    accuracy = pl.col("name") == "critic/accuracy"
    recorded = pl.read_csv(Path(__file__).parent / "quickstart_runs.csv").filter(run=run)
    score = recorded.filter(accuracy).with_columns(name=pl.lit("critic/score/mean"))
    agreement = score.with_columns(name=pl.lit(VERIFIER_CORRELATION), value=pl.lit(1.0))
    metrics = pl.concat([recorded, score, agreement]).with_columns(stage=pl.lit("rl"))
    assert diagnose(recipe(), metrics.select("stage", "step", "name", "value")).findings == []

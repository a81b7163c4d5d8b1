"""The spread of importance weights: by hand, and of real runs at their smallest."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.bench.weights import ALGORITHMS, curves, draw, weights
from tests.flows.small_run import SMALL


def frame(old: list[list[float]], sampler: list[list[float]]) -> pl.DataFrame:
    """Rows of one group, whose first token is the prompt's."""
    f32 = pl.List(pl.Float32)
    return pl.DataFrame(
        {
            "uid": ["u"] * len(old),
            "loss_mask": [[False, *([True] * len(row))] for row in old],
            "old_logprobs": pl.Series([[0.0, *row] for row in old], dtype=f32),
            "sampler_logprobs": pl.Series([[0.0, *row] for row in sampler], dtype=f32),
        }
    )


def test_weights_are_those_of_the_losses() -> None:
    found = weights(frame([[-1.0, -2.0], [-0.5]], [[-1.5, -2.0], [-1.0]]))
    assert found["token"] == pytest.approx(np.exp([0.5, 0.0, 0.5]))
    assert found["sequence"] == pytest.approx(np.exp([0.25, 0.5]))
    q = np.exp([-1.75, -1.0])
    expected = np.exp([-1.5, -0.5]) / ((q**2).sum() / q.sum())
    assert found["group"] == pytest.approx(expected)


@pytest.mark.slow
def test_each_algorithm_runs_at_each_staleness(tmp_path: Path) -> None:
    small = {k: v for k, v in SMALL.items() if not k.startswith("reward")}
    found = curves((1,), {**small, "rl.iterations": 3})
    assert len(found) == len(ALGORITHMS)
    for curve in found:
        assert [step for step, _ in curve.variance] == [1, 2, 3]
        assert np.isfinite(curve.mean)
        if curve.algorithm != "GEPO":  # whose groups differ in probability by themselves
            fresh = curve.variance[0][1]
            assert fresh < 1e-9, "the first iteration trains what it samples"
            assert fresh < curve.mean
    draw(found, tmp_path / "weights.png")
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")

"""Curves are as long as the run, whatever an iteration left out."""

from math import isnan, nan

import polars as pl

from rlcore.api.progress import CURVES, curves
from rlcore.results.metrics import metrics_frame


def recorded(*iterations: dict[str, float]) -> pl.DataFrame:
    """The Metrics table of a run: its first validation, then its iterations."""
    frames = [metrics_frame("rl", step, values) for step, values in enumerate(iterations, start=1)]
    return pl.concat([metrics_frame("rl", 0, {"val/accuracy": 0.1}), *frames])


def test_every_curve_has_one_number_per_iteration() -> None:
    """Plotted against each other, a shorter one would be shifted."""
    found = curves(
        recorded(
            {"critic/accuracy": 0.5, "actor/lr": 1e-6, "critic/score/mean": nan},
            {"critic/accuracy": 1, "train/filtered_ratio": 0.25},
        )
    )
    assert {len(values) for values in found.values()} == {2}
    assert found["accuracy"] == [0.5, 1.0]
    assert found["filtered_ratio"] == [0.0, 0.25]
    first, second = found["learning_rate"]
    assert first == 1e-6
    assert isnan(second)
    assert all(isnan(value) for value in found["average_reward"])


def test_an_iteration_with_other_metrics_is_nan_but_nothing_was_filtered() -> None:
    found = curves(recorded({"timing_s/step": 1.0}))
    defined = [name for name in CURVES if not isnan(found[name][0])]
    assert defined == ["filtered_ratio"]

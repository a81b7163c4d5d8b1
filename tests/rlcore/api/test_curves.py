"""Curves are as long as the run, whatever an iteration left out."""

from math import isnan

from rlcore.api.curves import CURVES, Curves


def test_every_curve_has_one_number_per_iteration() -> None:
    """Plotted against each other, a shorter one would be shifted."""
    curves = Curves()
    curves.add({"critic/accuracy": 0.5, "actor/lr": 1e-6})
    curves.add({"critic/accuracy": 1, "train/filtered_ratio": 0.25})
    assert {len(values) for values in curves.values.values()} == {2}
    assert curves.values["accuracy"] == [0.5, 1.0]
    assert curves.values["filtered_ratio"] == [0.0, 0.25]
    first, second = curves.values["learning_rate"]
    assert first == 1e-6
    assert isnan(second)


def test_an_iteration_without_metrics_is_nan_but_nothing_was_filtered() -> None:
    curves = Curves()
    curves.add({})
    defined = [name for name in CURVES if not isnan(curves.values[name][0])]
    assert defined == ["filtered_ratio"]

"""What people look for first stands first."""

from rlcore.report.draw import curves
from rlcore.results.metrics import metrics_frame


def _titles(*names: str, stage: str = "rl") -> list[str]:
    frame = metrics_frame(stage, 1, {name: float(place) for place, name in enumerate(names)})
    first, _ = curves({"run": {stage: frame}}).of(stage)
    return [panel.title for panel in first]


def test_the_curves_people_look_for_come_first() -> None:
    """Reward was in the ninth row of 63 panels, and validation accuracy last."""
    names = ("actor/a", "actor/entropy", "critic/score/mean", "val/score", "val/accuracy")
    assert _titles(*names) == ["Reward", "Validation accuracy", "Entropy, nats"]
    assert _titles("sft/loss", stage="sft") == ["sft/loss"]


def test_a_score_is_not_called_an_accuracy() -> None:
    assert _titles("val/score") == ["Validation score"]


def test_a_metric_without_a_finite_value_has_no_panel() -> None:
    assert _titles("actor/a") == ["actor/a"]
    frame = metrics_frame("rl", 1, {"actor/a": float("nan")})
    assert curves({"run": {"rl": frame}}).others == {}

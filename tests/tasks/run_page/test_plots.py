"""The pictures of a run's page: what people look for first, on honest scales."""

import struct

from tasks.run_page.plots import MAX_POINTS, curves_png, headlines, overlay_png, thinned

NOISE = [(step, 2.0 + 1e-7 * (step % 2)) for step in range(50)]


def _pixels(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_the_curves_people_look_for_come_first() -> None:
    """Reward was in the ninth row of 63 panels, and validation accuracy last."""
    names = ["actor/a", "actor/entropy", "critic/score/mean", "val/score", "val/accuracy"]
    curves = {name: [(1, float(place))] for place, name in enumerate(names)}
    shown = headlines(curves)
    assert list(shown) == ["reward", "validation accuracy", "entropy, nats"]
    assert shown["validation accuracy"] == curves["val/accuracy"]
    assert list(headlines({"sft/loss": [(1, 1.0)]})) == ["sft/loss"]


def test_a_score_is_not_called_an_accuracy() -> None:
    assert list(headlines({"val/score": [(1, 1.0)]})) == ["validation score"]


def test_a_picture_fits_the_page_whatever_the_run_is_long() -> None:
    long = [(step, float(step % 7)) for step in range(10_000)]
    assert len(thinned(long)) == MAX_POINTS
    width, height = _pixels(
        curves_png({"a<b>": long, "noise": NOISE, "one": [(3, 2.0)], "d": long})
    )
    assert width <= 846
    assert height == 340
    assert _pixels(overlay_png({"a": long, "b": NOISE, "$c_": [(1, 2.0)]}))[0] <= 846

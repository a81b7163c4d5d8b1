"""Panels: axes that do not dramatise, bounded size."""

import struct

import pytest

from rlcore.report.draw import MOST_POINTS, Line, Panel, number, picture, span, thinned


def _points(values: list[float | None]) -> list[tuple[int, float | None]]:
    return list(enumerate(values))


@pytest.mark.parametrize(
    ("low", "high"), [(0.5, 0.500001), (1e-7, 9e-7), (0.0, 0.0), (100.0, 100.5), (-2e-6, 1e-6)]
)
def test_no_axis_is_stretched_over_noise(low: float, high: float) -> None:
    """A change of 1e-6 that fills a panel is read as a collapse."""
    start, end = span(low, high)
    assert high - low <= 0.26 * (end - start)
    assert start <= low
    assert high <= end


def test_a_learning_rate_has_an_axis_of_its_own_size() -> None:
    start, end = span(1e-6, 3e-6, "actor/lr")
    assert end - start < 5e-6


def test_many_steps_are_averaged_within_the_band_of_their_extremes() -> None:
    rows = thinned([(step, float(step % 2)) for step in range(5000)])
    assert len(rows) == MOST_POINTS
    assert {(least, greatest) for _, _, least, greatest in rows} == {(0.0, 1.0)}
    assert sum(mean for _, mean, _, _ in rows) / MOST_POINTS == pytest.approx(0.5, abs=0.01)


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    panel = Panel("r", [Line("a", _points([0.5, None, float("nan")]))])
    assert panel.missing == 2
    assert panel.summary == "0.5"
    assert picture([panel], form="svg").startswith(b"<?xml")


def test_a_picture_fits_the_page_whatever_the_run_is_long() -> None:
    long = [(step, float(step % 7)) for step in range(10_000)]
    noise = [(step, 2.0 + 1e-7 * (step % 2)) for step in range(50)]
    named = {"a<b>": long, "noise": noise, "$c_": [(3, 2.0)], "d": long}
    panels = [Panel(title, [Line("", points)], title) for title, points in named.items()]
    assert _pixels(picture(panels)) == (840, 340), "the UI's text is 846 wide"
    two = [Line("one", long), Line("other", noise, 1)]
    assert _pixels(picture([Panel("both", two, y_label="of both")]))[0] <= 846


def _pixels(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_numbers_are_short() -> None:
    assert [number(v) for v in (12345.6, 0.123456, 2e-6)] == ["12,346", "0.1235", "2e-06"]

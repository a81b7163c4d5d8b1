"""Panels: axes that do not dramatise, round ticks, bounded size."""

import pytest

from rlcore.report.charts import MOST_POINTS, Series, chart, number, span, ticks


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


@pytest.mark.parametrize(
    "ends", [(0.0, 1.0), (-3.2, 5.1), (0.0, 1e-4), (0.0, 123456.0), (5.0, 5.1), (4.204, 4.296)]
)
def test_ticks_are_few_round_and_distinct(ends: tuple[float, float]) -> None:
    found = ticks(*ends)
    assert 2 <= len(found) <= 5
    assert len({label for _, label in found}) == len(found)
    assert all(ends[0] - 1e-9 <= value <= ends[1] + 1e-9 for value, _ in found)


def test_many_steps_are_averaged_within_the_band_of_their_extremes() -> None:
    panel = chart("r", "r", [Series("a", 0, _points([float(i % 2) for i in range(5000)]))])
    assert panel is not None
    (line,) = panel.lines
    assert len(line.path.split()) == MOST_POINTS
    assert len(line.band.split()) == 2 * MOST_POINTS


def test_one_point_is_a_dot_and_none_is_no_panel() -> None:
    panel = chart("r", "r", [Series("a", 0, _points([0.5, None, float("nan")]))])
    assert panel is not None
    assert panel.lines[0].dot is not None
    assert panel.missing == 1
    assert panel.summary == "0.5"
    assert chart("r", "r", [Series("a", 0, _points([None]))]) is None


def test_numbers_are_short() -> None:
    assert [number(v) for v in (12345.6, 0.123456, 2e-6)] == ["12,346", "0.1235", "2e-06"]

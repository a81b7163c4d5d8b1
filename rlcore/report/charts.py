"""Curves as geometry: what a template needs to draw a panel as SVG, in the units of its viewBox."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

WIDTH, HEIGHT = 340, 180
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 8, 22
MOST_POINTS = 160  # of one line; more steps are averaged in equal shares
TICKS = 4
# A span of values below these is noise: an axis that it filled would show a flat line as a storm.
LEAST_SPAN = 1e-4
LEAST_SHARE = 0.02  # of the greatest magnitude
SCALELESS = ("/lr",)  # metrics whose values are that small by nature


@dataclass(frozen=True, slots=True)
class Series:
    """(step, value) pairs by step; a value that was not finite is None. ``colour``: its number."""

    label: str
    colour: int
    points: Sequence[tuple[int, float | None]]


@dataclass(frozen=True, slots=True)
class Line:
    """A series as drawn: ``path`` for a polyline, ``band`` for the polygon of least and greatest
    where steps are averaged, ``dot`` where there is one point only."""

    label: str
    colour: int
    path: str
    band: str
    dot: tuple[float, float] | None
    last: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A panel. ``missing``: values that were not finite. Ticks are (place, label)."""

    title: str
    metric: str
    lines: Sequence[Line]
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    summary: str
    missing: int


def chart(title: str, metric: str, series: Sequence[Series]) -> Chart | None:
    """Return the panel of ``series``; None where none has a finite value."""
    known = [(one, _finite(one.points)) for one in series]
    values = [value for _, points in known for _, value in points]
    if not values:
        return None
    steps = [step for _, points in known for step, _ in points]
    first, last = min(steps), max(steps)
    low, high = span(min(values), max(values), metric)

    def place(step: float, value: float) -> tuple[float, float]:
        across = (step - first) / ((last - first) or 1) if last > first else 0.5
        x = LEFT + across * (WIDTH - LEFT - RIGHT)
        return x, HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    lines = [_line(one, points, place) for one, points in known if points]
    return Chart(
        title=title,
        metric=metric,
        lines=lines,
        x_ticks=[(place(x, low)[0], f"{x:,.0f}") for x in _steps(first, last)],
        y_ticks=[(place(first, y)[1], label) for y, label in ticks(low, high)],
        summary=_summary(known[0][1]) if len(known) == 1 else "",
        missing=sum(value is None for one in series for _, value in one.points),
    )


def span(low: float, high: float, metric: str = "") -> tuple[float, float]:
    """Return the ends of an axis for values from ``low`` to ``high``: at least as long as a change
    that means something, and not below 0 for values that are not."""
    magnitude = max(abs(low), abs(high))
    least = LEAST_SHARE * magnitude
    if not metric.endswith(SCALELESS):
        least = max(least, LEAST_SPAN)
    grown = max(high - low, least) if magnitude else 1.0
    middle, half = (low + high) / 2, grown * 0.54
    start, end = middle - half, middle + half
    if low >= 0 > start:
        start, end = 0.0, max(end - start, high * 1.08)
    return start, end


def ticks(low: float, high: float, most: int = TICKS) -> list[tuple[float, str]]:
    """Return at most ``most`` round numbers from ``low`` to ``high`` with their labels."""
    step = _round_step((high - low) / most)
    values = _multiples(step, low, high)
    if len(values) < 2:
        step = _round_step((high - low) / most / 2)
        values = _multiples(step, low, high)
    greatest = max((abs(value) for value in values), default=0.0)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if digits > 4 or greatest >= 1e6:
        return [(value, f"{value:.2g}" if value else "0") for value in values]
    return [(value, f"{value:,.{digits}f}") for value in values]


def number(value: float) -> str:
    """Return a figure with about four digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def thinned(
    points: Sequence[tuple[int, float]], most: int = MOST_POINTS
) -> list[tuple[float, float, float, float]]:
    """Return at most ``most`` (step, mean, least, greatest), each of an equal share of the
    points."""
    if len(points) <= most:
        return [(step, value, value, value) for step, value in points]
    starts = np.arange(most) * len(points) // most
    sizes = np.diff(np.append(starts, len(points)))
    steps, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    columns = (
        np.add.reduceat(steps, starts) / sizes,
        np.add.reduceat(values, starts) / sizes,
        np.minimum.reduceat(values, starts),
        np.maximum.reduceat(values, starts),
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _line(
    one: Series,
    points: Sequence[tuple[int, float]],
    place: Callable[[float, float], tuple[float, float]],
) -> Line:
    rows = thinned(points)
    path = joined(place(step, mean) for step, mean, _, _ in rows)
    band = ""
    if len(rows) < len(points):
        upper = [place(step, high) for step, _, _, high in rows]
        lower = [place(step, low) for step, _, low, _ in rows]
        band = joined([*upper, *reversed(lower)])
    dot = place(rows[0][0], rows[0][1]) if len(rows) == 1 else None
    return Line(one.label, one.colour, path, band, dot, number(points[-1][1]))


def joined(places: Iterable[tuple[float, float]]) -> str:
    """Return points as the attribute of a polyline or polygon."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _finite(points: Sequence[tuple[int, float | None]]) -> list[tuple[int, float]]:
    return [(step, value) for step, value in points if value is not None and math.isfinite(value)]


def _summary(points: Sequence[tuple[int, float]]) -> str:
    values = [value for _, value in points]
    if len(values) == 1:
        return number(values[0])
    ends = f"{number(values[0])} → {number(values[-1])}"
    return f"{ends}; {number(min(values))} to {number(max(values))}"


def _steps(first: int, last: int) -> list[float]:
    """Return whole steps to label: round ones."""
    if first == last:
        return [first]
    apart = max(1.0, _round_step((last - first) / 5))
    start = math.ceil(first / apart)
    return [number * apart for number in range(start, math.floor(last / apart) + 1)]


def _multiples(step: float, low: float, high: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _round_step(least: float) -> float:
    """Return the next number of 1, 2, 5, 10, ... that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))

"""Curves as an SVG of small multiples: drawn by hand so that a run page needs no plotting library.

The Prefect UI drops inline SVG but shows images in Markdown, also from data URIs.
"""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 270, 130  # pixels
TOP, BOTTOM, SIDE = 34, 18, 8
MAX_POINTS = 120  # of one curve; more steps are averaged in equal shares
LINE, INK = "#4c9aff", "#8c93a3"  # readable on the UI's dark and light ground
COLOURS = (LINE, "#e8833a", INK)


def curves_svg(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Return one panel per curve; a curve is its (step, value) pairs by step, values finite."""
    rows = -(-len(curves) // COLUMNS)
    size = f'width="{COLUMNS * PANEL_WIDTH}" height="{rows * PANEL_HEIGHT}"'
    panels = [
        f'<g transform="translate({index % COLUMNS * PANEL_WIDTH},'
        f'{index // COLUMNS * PANEL_HEIGHT})">{_panel(name, points)}</g>'
        for index, (name, points) in enumerate(curves.items())
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11"'
        f' fill="{INK}">{"".join(panels)}</svg>'
    )


def overlay_svg(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Return one wide panel with up to three curves, each on its own scale, named in its colour."""
    width, height = COLUMNS * PANEL_WIDTH, 2 * PANEL_HEIGHT
    parts = []
    for index, (name, points) in enumerate(curves.items()):
        colour = COLOURS[index]
        path, low, high = _path(_thinned(points), width, height)
        parts.append(
            f'<text x="{SIDE + index * PANEL_WIDTH}" y="14" fill="{colour}">'
            f'<tspan font-weight="bold">{escape(name)}</tspan>'
            f'<tspan x="{SIDE + index * PANEL_WIDTH}" dy="13">{low:.4g} to {high:.4g}, last'
            f" {points[-1][1]:.4g}</tspan></text>"
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
    steps = [step for points in curves.values() for step, _ in points]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="11" fill="{INK}">{"".join(parts)}'
        f"{_axis(min(steps), max(steps), width, height)}</svg>"
    )


def data_uri(svg: str) -> str:
    """Return an SVG as a data URI."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _panel(name: str, points: Sequence[tuple[int, float]]) -> str:
    path, low, high = _path(_thinned(points), PANEL_WIDTH, PANEL_HEIGHT)
    return (
        f'<text x="{SIDE}" y="14" font-weight="bold">{escape(name)}</text>'
        f'<text x="{SIDE}" y="27">{low:.4g} to {high:.4g}, last {points[-1][1]:.4g}</text>'
        f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.5"/>'
        f"{_axis(points[0][0], points[-1][0], PANEL_WIDTH, PANEL_HEIGHT)}"
    )


def _path(
    means: Sequence[tuple[float, float]], width: int, height: int
) -> tuple[str, float, float]:
    """Return the points of a polyline that fills a panel, and the least and greatest value."""
    first, last = means[0][0], means[-1][0]
    low, high = min(value for _, value in means), max(value for _, value in means)
    across = (width - 2 * SIDE) / ((last - first) or 1)
    up = (height - TOP - BOTTOM) / ((high - low) or 1)
    path = " ".join(
        f"{SIDE + (step - first) * across:.1f},{height - BOTTOM - (value - low) * up:.1f}"
        for step, value in means
    )
    return path, low, high


def _axis(first: int, last: int, width: int, height: int) -> str:
    floor = height - BOTTOM
    return (
        f'<line x1="{SIDE}" x2="{width - SIDE}" y1="{floor}" y2="{floor}" stroke="{INK}"'
        f' stroke-opacity="0.4"/>'
        f'<text x="{SIDE}" y="{height - 5}">step {first}</text>'
        f'<text x="{width - SIDE}" y="{height - 5}" text-anchor="end">{last}</text>'
    )


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return at most ``MAX_POINTS`` points, each the mean of its share of the steps."""
    count = min(MAX_POINTS, len(points))
    edges = [index * len(points) // count for index in range(count + 1)]
    shares = [points[start:end] for start, end in pairwise(edges)]
    return [
        (sum(step for step, _ in share) / len(share), sum(value for _, value in share) / len(share))
        for share in shares
    ]

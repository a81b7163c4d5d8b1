"""Curves as an SVG of small multiples: drawn by hand so that a run page needs no plotting library.

The Prefect UI drops inline SVG and shows an image in Markdown, also one carried in a data URI.
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


def data_uri(svg: str) -> str:
    """Return an SVG as the address of an image."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _panel(name: str, points: Sequence[tuple[int, float]]) -> str:
    means = _thinned(points)
    first, last = means[0][0], means[-1][0]
    low, high = min(value for _, value in means), max(value for _, value in means)
    across = (PANEL_WIDTH - 2 * SIDE) / ((last - first) or 1)
    up = (PANEL_HEIGHT - TOP - BOTTOM) / ((high - low) or 1)
    floor = PANEL_HEIGHT - BOTTOM
    path = " ".join(
        f"{SIDE + (step - first) * across:.1f},{floor - (value - low) * up:.1f}"
        for step, value in means
    )
    return (
        f'<text x="{SIDE}" y="14" font-weight="bold">{escape(name)}</text>'
        f'<text x="{SIDE}" y="27">{low:.4g} to {high:.4g}, last {points[-1][1]:.4g}</text>'
        f'<line x1="{SIDE}" x2="{PANEL_WIDTH - SIDE}" y1="{floor}" y2="{floor}" stroke="{INK}"'
        f' stroke-opacity="0.4"/>'
        f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.5"/>'
        f'<text x="{SIDE}" y="{PANEL_HEIGHT - 5}">step {points[0][0]}</text>'
        f'<text x="{PANEL_WIDTH - SIDE}" y="{PANEL_HEIGHT - 5}" text-anchor="end">'
        f"{points[-1][0]}</text>"
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

"""The pictures of benchmarks: how many times as fast as a peer on the same work, a bar each; how
seconds grow with what is asked for; and one figure against another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.report.draw import COLOURS, DPI, INK
from tests.bench.measures import Measure

WIDTH_INCHES, BAR_INCHES, FRAME_INCHES = 7.0, 0.32, 0.8
PANEL_INCHES = (2.5, 2.0)
SAME = 1.0  # as fast as the peer


def draw(measures: Sequence[Measure], path: Path) -> None:
    """Write the measures that compare with a peer as one PNG; nothing where there are none."""
    from matplotlib.figure import Figure

    compared = [each for each in measures if each.is_speedup]
    if not compared:
        return
    size = (WIDTH_INCHES, FRAME_INCHES + BAR_INCHES * len(compared))
    figure = Figure(size, layout="constrained")
    axes = figure.subplots()
    _style(axes)
    names, values = [each.name for each in compared], [each.value for each in compared]
    bars = axes.barh(names, values, color=COLOURS[0], height=0.65)
    axes.bar_label(bars, fmt="%.2f ×", padding=3, fontsize=8, color=INK)
    axes.axvline(SAME, color=INK, linewidth=1)
    axes.invert_yaxis()
    axes.set_xlim(0, max(values) * 1.15)
    axes.set_xlabel("times as fast as the peer", fontsize=8, color=INK)
    _save(figure, path)


@dataclass(frozen=True, slots=True)
class Growth:
    """Seconds over what they grow with: what was measured, and two points of the line through it.

    ``title``: of the axis. ``line``: in words.
    """

    title: str
    measured: Sequence[tuple[float, float]]
    fitted: Sequence[tuple[float, float]]
    line: str


def draw_growth(panels: Sequence[Growth], path: Path) -> None:
    """Write the panels as one PNG, side by side."""
    from matplotlib.figure import Figure

    size = (PANEL_INCHES[0] * len(panels), PANEL_INCHES[1])
    figure = Figure(size, layout="constrained")
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        _style(axes)
        axes.plot(*zip(*panel.measured, strict=True), "o", color=COLOURS[0], markersize=4)
        axes.plot(*zip(*panel.fitted, strict=True), color=COLOURS[1], linewidth=1.2)
        axes.set_ylim(bottom=0)
        axes.set_title(panel.title, fontsize=9, color=INK, loc="left", fontweight="bold")
        axes.set_xlabel(panel.line, fontsize=7, color=INK)
    _save(figure, path)


def draw_against(
    lines: Mapping[str, Sequence[tuple[float, float]]], path: Path, *, x_label: str, y_label: str
) -> None:
    """Write the points of each line, by name, as one PNG; both scales are logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure((WIDTH_INCHES / 2, PANEL_INCHES[1]), layout="constrained")
    axes = figure.subplots()
    _style(axes)
    for colour, (name, points) in enumerate(lines.items()):
        axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[colour], label=name, markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    places = sorted({x for points in lines.values() for x, _ in points})
    axes.set_xticks(places, [f"{place:g}" for place in places], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel(x_label, fontsize=8, color=INK)
    axes.set_ylabel(y_label, fontsize=8, color=INK)
    axes.legend(fontsize=7, labelcolor=INK, frameon=False)
    _save(figure, path)


def _style(axes: Any) -> None:
    axes.tick_params(colors=INK, labelsize=8)
    axes.patch.set_alpha(0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, transparent=True, metadata={"Software": None})

"""The figure of a learning study: small multiples as a PNG, readable on light and dark
backgrounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = 4
PANEL_INCHES = (2.5, 1.9)
DPI = 110
INK = "#7d8590"  # text and axes: contrast above 4 on white and on GitHub's dark background
COLOURS = ("#4c9aff", "#e8833a", "#2da44e", "#bf5af2", "#d29922", "#db61a2")
PROXY, TRUTH = COLOURS[0], COLOURS[1]

Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Panel:
    """One figure of one recipe over iterations, a line per label (its seed)."""

    title: str
    subtitle: str
    lines: Mapping[str, Points]
    y_label: str
    limits: tuple[float, float] = (0.0, 1.03)


@dataclass(frozen=True)
class ProxyPanel:
    """Reward model score and true accuracy per iteration; a pair of lines per seed."""

    title: str
    pairs: Sequence[tuple[Points, Points]]


def draw(panels: Sequence[Panel | ProxyPanel], path: Path) -> None:
    """Write the panels as one PNG, ``COLUMNS`` to a row."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure((columns * PANEL_INCHES[0], rows * PANEL_INCHES[1]), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for panel, axes in zip(panels, grid, strict=False):
        axes.set_title(panel.title, fontsize=9, color=INK, loc="left", fontweight="bold")
        _style(axes)
        if isinstance(panel, Panel):
            _draw_lines(axes, panel)
        else:
            _draw_proxy(axes, panel)
    for axes in list(grid):
        axes.set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.supxlabel("RL iteration", fontsize=8, color=INK)
    figure.savefig(path, dpi=DPI, transparent=True, metadata={"Software": None})


def _draw_lines(axes: Any, panel: Panel) -> None:
    for colour, (label, points) in zip(COLOURS, panel.lines.items(), strict=False):
        axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.4, label=label)
    axes.set_ylabel(panel.y_label, fontsize=7, color=INK)
    axes.set_ylim(*panel.limits)
    axes.text(
        0.97, 0.08, panel.subtitle, transform=axes.transAxes, ha="right", fontsize=7, color=INK
    )
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 0.14),
        ncols=len(panel.lines),
        fontsize=6.5,
        frameon=False,
        labelcolor=INK,
        handlelength=1.0,
        columnspacing=0.8,
    )


def _draw_proxy(axes: Any, panel: ProxyPanel) -> None:
    truth_axes = axes.twinx()
    _style(truth_axes)
    for proxy, truth in panel.pairs:
        axes.plot(*zip(*proxy, strict=True), color=PROXY, linewidth=1.0)
        truth_axes.plot(*zip(*truth, strict=True), color=TRUTH, linewidth=1.0)
    axes.set_ylabel("reward model", fontsize=7, color=PROXY)
    truth_axes.set_ylabel("true accuracy", fontsize=7, color=TRUTH)
    truth_axes.set_ylim(0, 1.03)


def _style(axes: Any) -> None:
    axes.tick_params(labelsize=7, colors=INK, length=2)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(INK)
    axes.patch.set_alpha(0)

"""The picture of a run's lineage: a box per stage, its artifact and how it came, arrows from what
it was made from. All iterations of the stage rl are one box below it."""

from collections.abc import Sequence
from typing import Any

from matplotlib.patches import FancyBboxPatch

from rlcore.report.draw import INK, new_figure, saved
from rlcore.report.facts import CACHED, GONE, MADE, OPEN, RL, Iterations, StageFacts

COLUMN_INCHES, ROW_INCHES = 1.2, 0.62  # seven stages side by side fit the 846 pixels of the UI

BOX = (0.84, 0.62)  # of a column and of a row

FILLS = {MADE: "#d7f0dd", CACHED: "#e5e7eb", OPEN: "#fff3cd", GONE: "#fde2e1"}

EDGES = ("#2a6fdb", "#d9731a", "#2f8f4e", "#8e44ad", "#c0392b", INK, "#b58900")


def lineage_png(stages: Sequence[StageFacts], iterations: Iterations | None) -> bytes:
    """Return the picture of ``stages``. The number of ``iterations`` is in it once the stage rl has
    ended, so that it is the same picture until then."""
    places = {stage.name: index for index, stage in enumerate(stages)}
    arrows = [
        (places[origin], place)
        for place, stage in enumerate(stages)
        for origin in dict.fromkeys(stage.origins.values())
        if origin in places
    ]
    above = 0.75 + 0.22 * max((end - start for start, end in arrows), default=0)
    below = 1.75 if iterations else 0.75
    width = max(3, len(stages))
    figure = new_figure(width * COLUMN_INCHES, (above + below) * ROW_INCHES)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-0.5, width - 0.5)
    axes.set_ylim(-below, above)
    axes.set_axis_off()
    for start, end in arrows:
        _arrow(axes, start, end)
    for place, stage in enumerate(stages):
        took = "" if stage.seconds is None else f", {stage.seconds:.0f} s"
        _box(axes, (place, 0.0), f"{stage.name}\n{stage.state}{took}", stage.state)
    if iterations is not None:
        noun = "iteration" if iterations.count == 1 else "iterations"
        text = f"rl: {iterations.count} {noun}\nbest: {iterations.best}"
        if iterations.best is None:
            text = "rl: iterations\nso far"
        column = places[RL]
        _box(axes, (column, -1.2), text, stages[column].state)
        ends = (column, -BOX[1] / 2), (column, -1.2 + BOX[1] / 2)
        axes.annotate("", *ends, arrowprops={"arrowstyle": "-|>", "color": INK})
    return saved(figure)


def _box(axes: Any, centre: tuple[float, float], text: str, state: str) -> None:
    width, height = BOX
    corner = (centre[0] - width / 2, centre[1] - height / 2)
    style = "round,pad=0,rounding_size=0.06"
    dashes = "--" if state in (OPEN, GONE) else "-"
    axes.add_patch(
        FancyBboxPatch(
            corner, width, height, style, facecolor=FILLS[state], edgecolor=INK, linestyle=dashes
        )
    )
    axes.text(*centre, text, ha="center", va="center", fontsize=8, color="#111827", linespacing=1.4)


def _arrow(axes: Any, start: int, end: int) -> None:
    """Draw an arrow between neighbours, or an arc above the boxes between, in the parent's
    colour. Arcs leave a box to the right of its middle and come in to the left of it."""
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "color": EDGES[start % len(EDGES)]}
    span = end - start
    if span == 1:
        tail, head = (start + BOX[0] / 2, 0), (end - BOX[0] / 2, 0)
    else:
        tail, head = (start + 0.2, BOX[1] / 2), (end - 0.1 - 0.28 * (span - 2) / 4, BOX[1] / 2)
        arm = (0.45 + 0.22 * span - BOX[1] / 2) * ROW_INCHES * 72  # points, of which 72 are an inch
        arrow["connectionstyle"] = f"arc,angleA=90,angleB=90,armA={arm},armB={arm},rad=8"
        arrow |= {"linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", head, tail, arrowprops=arrow)

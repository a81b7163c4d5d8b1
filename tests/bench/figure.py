"""The picture of a benchmark: how many times as fast as a peer on the same work, a bar each."""

from collections.abc import Sequence
from pathlib import Path

from flows.figure import COLOURS, DPI, INK
from tests.bench.measures import Measure

WIDTH_INCHES, BAR_INCHES, FRAME_INCHES = 7.0, 0.32, 0.8
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
    names, values = [each.name for each in compared], [each.value for each in compared]
    bars = axes.barh(names, values, color=COLOURS[0], height=0.65)
    axes.bar_label(bars, fmt="%.2f ×", padding=3, fontsize=8, color=INK)
    axes.axvline(SAME, color=INK, linewidth=1)
    axes.invert_yaxis()
    axes.set_xlim(0, max(values) * 1.15)
    axes.set_xlabel("times as fast as the peer", fontsize=8, color=INK)
    axes.tick_params(colors=INK, labelsize=8)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, transparent=True, metadata={"Software": None})

"""The pictures of a run's page, as PNG: curves, each on a scale that a rounding error cannot fill.

Every picture is a ``Figure`` of its own: matplotlib's ``pyplot`` keeps a state that a thread beside
the run may not share. The ground is white: the UI has a dark and a light one.
"""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rlcore.report.charts import span

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Sequence[tuple[int, float]]  # (step, value) by step, values finite

# What people look for first, in that order: titles and their metrics, of which the first one that
# there is is drawn.
HEADLINES: tuple[dict[str, str], ...] = (
    {"reward": "critic/score/mean"},
    {"validation accuracy": "val/accuracy", "validation score": "val/score"},
    {"response length, tokens": "response_length/mean"},
    {"entropy, nats": "actor/entropy"},
    {"KL to the reference, nats": "actor/ref_kl"},
    {"gradient norm": "actor/grad_norm"},
    {"log-prob gap engine to learner, nats": "training/rollout_logprobs_gap_max"},
)
COLUMNS = 3
PANEL_INCHES = (2.8, 1.7)  # three side by side fit the 846 pixels of the UI's text
MARGINS = (0.55, 0.1, 0.3, 0.3)  # inches of a panel: left, right, below, above
TICKS = 4  # of each axis, at most
DPI = 100
MAX_POINTS = 400  # of one curve; more steps are averaged in equal shares
COLOURS = ("#2a6fdb", "#d9731a", "#6b7280")


def headlines(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    """Return the curves that people look for first, by title; all of them where there is none."""
    known = [[title for title, name in named.items() if name in curves] for named in HEADLINES]
    found = {
        titles[0]: curves[named[titles[0]]]
        for named, titles in zip(HEADLINES, known, strict=True)
        if titles
    }
    return found or dict(curves)


def curves_png(curves: Mapping[str, Curve]) -> bytes:
    """Return one panel per curve, at places computed here: matplotlib's own layout measures every
    label, which is three quarters of the time of a picture."""
    rows = max(1, -(-len(curves) // COLUMNS))
    (across, down), (left, right, below, above) = PANEL_INCHES, MARGINS
    width, height = COLUMNS * across, rows * down
    figure = white_figure(width, height, layout=None)
    for place, (title, points) in enumerate(curves.items()):
        row, column = divmod(place, COLUMNS)
        x, y = column * across + left, height - (row + 1) * down + below
        panel = (across - left - right, down - below - above)
        axes = figure.add_axes((x / width, y / height, panel[0] / width, panel[1] / height))
        _draw(axes, points, COLOURS[0], title)
        axes.set_title(title, fontsize=8, loc="left", y=1.0)  # a place, so that none is looked for
    return png_of(figure)


def overlay_png(curves: Mapping[str, Curve]) -> bytes:
    """Return one panel with up to three curves, each on its own scale, named with its range."""
    figure = white_figure(COLUMNS * PANEL_INCHES[0], 2 * PANEL_INCHES[1])
    first = figure.subplots()
    lines = []
    for place, (colour, (name, points)) in enumerate(zip(COLOURS, curves.items(), strict=False)):
        axes = first if place == 0 else first.twinx()
        line = _draw(axes, points, colour, name)
        axes.set_yticks([])
        values = [value for _, value in points]
        line.set_label(f"{name}: {min(values):.4g} to {max(values):.4g}, last {values[-1]:.4g}")
        lines.append(line)
    first.legend(handles=lines, fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    return png_of(figure)


def white_figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> "Figure":
    """Return an empty figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure((width, height), layout=layout, dpi=DPI, facecolor="white")


def warm_up() -> None:
    """Load matplotlib and its font, which takes seconds once."""
    curves_png({"": [(0, 0.0)]})


def png_of(figure: "Figure") -> bytes:
    """Return ``figure`` as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _draw(axes: Any, points: Curve, colour: str, name: str) -> Any:
    shown = thinned(points)
    steps, values = zip(*shown, strict=True)
    marker = "o" if len(shown) == 1 else None
    (line,) = axes.plot(steps, values, color=colour, linewidth=1.3, marker=marker, markersize=3)
    axes.set_ylim(*span(min(values), max(values), name))  # which noise cannot fill
    axes.tick_params(labelsize=7)
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:.4g}")  # no power above the panel
    axes.yaxis.get_major_locator().set_params(nbins=TICKS)
    axes.xaxis.get_major_locator().set_params(nbins=TICKS, integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    return line


def thinned(points: Curve) -> list[tuple[float, float]]:
    """Return at most ``MAX_POINTS`` points, each the mean of its share of the steps."""
    count = min(MAX_POINTS, len(points))
    edges = [index * len(points) // count for index in range(count + 1)]
    shares = [points[edges[index] : edges[index + 1]] for index in range(count)]
    return [
        (sum(step for step, _ in share) / len(share), sum(value for _, value in share) / len(share))
        for share in shares
    ]

"""Curves as panels of a picture (of a report, of a run's page, of a study): which, and how.

Every picture is a separate ``Figure``: matplotlib's ``pyplot`` keeps a state that a thread beside
the run may not share. The ground is transparent; the ink has a contrast above 4 on white and on
the dark ground of GitHub and of both UIs.
"""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rlcore.report.text import number

COLUMNS = 3
PANEL_INCHES = (2.8, 1.7)  # three side by side fit the 846 pixels of the UI's text
LEFT, RIGHT, BELOW, ABOVE = 0.55, 0.1, 0.3, 0.3  # inches of a panel
DPI = 100
INK = "#7d8590"
COLOURS = ("#4c9aff", "#e8833a", "#2da44e", "#bf5af2", "#d29922", "#db61a2", "#14a3a3", INK)
MOST_POINTS = 160  # of one line; more steps are averaged in equal shares
TICKS = 4  # of each axis, at most
# A span of values below these is noise: an axis that it filled would show a flat line as a storm.
LEAST_SPAN = 1e-4
LEAST_SHARE = 0.02  # of the greatest magnitude
SCALELESS = ("/lr",)  # metrics whose values are that small by nature


@dataclass(frozen=True, slots=True)
class Line:
    """(step, value) pairs by step; a value that was not finite is None. ``colour``: the number of
    its colour."""

    label: str
    points: Sequence[tuple[int, float | None]]
    colour: int = 0

    @property
    def known(self) -> list[tuple[int, float]]:
        """The points whose values are finite."""
        return [(step, v) for step, v in self.points if v is not None and math.isfinite(v)]

    @property
    def values(self) -> list[float]:
        """The finite values, by step."""
        return [value for _, value in self.known]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over the same steps. ``metric``: what they show, whose name may bound the scale.

    ``note``: a line of text in the panel. ``limits``: ends of the scale, those of ``span`` without.
    ``legend``: whether the lines are named in it.
    """

    title: str
    lines: Sequence[Line]
    metric: str = ""
    note: str = ""
    y_label: str = ""
    limits: tuple[float, float] | None = None
    legend: bool = False

    @property
    def missing(self) -> int:
        """How many values were not finite."""
        return sum(len(line.points) - len(line.values) for line in self.lines)

    @property
    def summary(self) -> str:
        """First, last, least and greatest value of a single line; of several the last of each."""
        if len(self.lines) > 1:
            return "; ".join(f"{line.label}: {number(line.values[-1])}" for line in self.lines)
        values = self.lines[0].values
        if len(values) == 1:
            return number(values[0])
        ends = f"{number(values[0])} → {number(values[-1])}"
        return f"{ends}; {number(min(values))} to {number(max(values))}"


def picture(
    panels: Sequence[Panel],
    *,
    columns: int = COLUMNS,
    titles: bool = True,
    form: Literal["png", "svg"] = "png",
) -> bytes:
    """Return ``panels``, each with a finite value in each line, ``columns`` to a row.

    Places are computed here: matplotlib's own layout measures every label, which is three quarters
    of the time of a picture.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    left = LEFT + 0.15 * any(panel.y_label for panel in panels)
    above = ABOVE if titles else 0.1
    width, height = columns * PANEL_INCHES[0], rows * PANEL_INCHES[1]
    inner = (PANEL_INCHES[0] - left - RIGHT, PANEL_INCHES[1] - BELOW - above)
    figure = new_figure(width, height)
    grid = figure.subplots(
        rows,
        columns,
        squeeze=False,
        gridspec_kw={
            "left": left / width,
            "right": 1 - RIGHT / width,
            "bottom": BELOW / height,
            "top": 1 - above / height,
            "wspace": (left + RIGHT) / inner[0],
            "hspace": (BELOW + above) / inner[1],
        },
    ).flat
    for panel, axes in zip(panels, grid, strict=False):
        if titles:  # at a place, so that none is looked for
            axes.set_title(panel.title, fontsize=8, color=INK, loc="left", y=1.0, parse_math=False)
        _draw(axes, panel)
    for axes in grid:  # of the last row, without a panel
        axes.set_visible(False)
    return saved(figure, form)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches."""
    return Figure((width, height), layout=None, dpi=DPI)


def saved(figure: Figure, form: Literal["png", "svg"] = "png") -> bytes:
    """Return ``figure`` in the format ``form``."""
    buffer = io.BytesIO()
    metadata = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    figure.savefig(buffer, format=form, transparent=True, metadata=metadata)
    return buffer.getvalue()


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


def thinned(
    points: Sequence[tuple[int, float]], most: int = MOST_POINTS
) -> list[tuple[float, float, float, float]]:
    """Return at most ``most`` (step, mean, least, greatest), each of an equal share of points."""
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


def _draw(axes: Any, panel: Panel) -> None:
    for line in panel.lines:
        _draw_line(axes, line)
    values = [value for line in panel.lines for value in line.values]
    axes.set_ylim(*(panel.limits or span(min(values), max(values), panel.metric)))
    axes.set_ylabel(panel.y_label, fontsize=7, color=INK)
    axes.tick_params(labelsize=7, colors=INK, length=2)
    axes.yaxis.set_major_locator(MaxNLocator(TICKS))
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:.4g}")  # no power above it
    axes.xaxis.set_major_locator(MaxNLocator(TICKS, integer=True))
    axes.spines[:].set_color(INK)
    axes.spines[["top", "right"]].set_visible(False)
    inside = {"transform": axes.transAxes, "ha": "right", "fontsize": 7, "color": INK}
    axes.text(0.97, 0.06, panel.note, parse_math=False, **inside)
    if panel.legend:
        place = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.12)}
        add_legend(axes, **place, ncols=len(panel.lines), fontsize=6.5)


def add_legend(axes: Any, **place: Any) -> None:
    """Name what ``axes`` shows, in ink; ``place``: where, in how many columns, of what size."""
    axes.legend(frameon=False, labelcolor=INK, handlelength=1.0, columnspacing=0.8, **place)


def _draw_line(axes: Any, line: Line) -> None:
    rows = thinned(line.known)
    steps, means, least, greatest = zip(*rows, strict=True)
    colour = COLOURS[line.colour % len(COLOURS)]
    axes.plot(
        steps,
        means,
        color=colour,
        label=line.label,
        linewidth=1.3,
        linestyle="-" if line.colour < len(COLOURS) else "--",
        marker="o" if len(rows) == 1 else None,
        markersize=3,
    )
    if len(rows) < len(line.points):
        axes.fill_between(steps, least, greatest, color=colour, alpha=0.18, linewidth=0)


# Titles by metric, of which a report shows the first that a run has.
FIRST = (
    {"critic/score/mean": "Reward"},
    {"val/accuracy": "Validation accuracy", "val/score": "Validation score"},
    {"critic/accuracy": "Accuracy of the samples"},
    {"response_length/mean": "Response length, tokens"},
    {"actor/entropy": "Entropy, nats"},
    {"actor/ref_kl": "KL to the reference, nats"},
    {"actor/ppo_kl": "KL of the update, nats"},
    {"actor/grad_norm": "Gradient norm"},
    {"training/rollout_logprobs_gap_max": "Largest log-prob gap, sampler to learner, nats"},
)
RL = "rl"
STAGES = ("sft", "preference", "reward_model", RL)  # stages with metrics


@dataclass(frozen=True, slots=True)
class Curves:
    """Panels of one or several runs: ``first``, of RL, in view; ``others`` by stage."""

    first: Sequence[Panel]
    others: Mapping[str, Sequence[Panel]]

    def of(self, stage: str) -> tuple[Sequence[Panel], Sequence[Panel]]:
        """Return the panels of ``stage`` that people look for first, or all, and all of them."""
        first = self.first if stage == RL else ()
        others = self.others.get(stage, ())
        return first or others, [*first, *others]


def curves(runs: Mapping[str, Mapping[str, pl.DataFrame]]) -> Curves:
    """Return the panels of the metrics of ``runs``: by label of the run, then by stage.

    With several runs a panel has a line for each that has the metric, coloured by its place. A
    metric without a finite value has no panel.
    """
    found = {
        stage: _by_metric({label: by_stage.get(stage) for label, by_stage in runs.items()})
        for stage in (RL, "sft", "preference", "reward_model")
    }
    rl, first = found[RL], []
    for titles in FIRST:
        name = next((name for name in titles if name in rl), None)
        if name is not None:
            first.append(Panel(titles[name], rl.pop(name), name))
    return Curves(
        first,
        {
            stage: [Panel(name, metrics[name], name) for name in sorted(metrics)]
            for stage, metrics in found.items()
            if metrics
        },
    )


def _by_metric(tables: Mapping[str, pl.DataFrame | None]) -> dict[str, list[Line]]:
    """Return the lines of each metric, one per run that has it."""
    found: dict[str, list[Line]] = {}
    for colour, (label, frame) in enumerate(tables.items()):
        if frame is None or not frame.height:
            continue
        grouped = frame.sort("step", maintain_order=True).group_by("name").agg("step", "value")
        for name, steps, values in grouped.iter_rows():
            line = Line(label, list(zip(steps, values, strict=True)), colour)
            if line.known:
                found.setdefault(name, []).append(line)
    return found


def gap_panel(title: str, curves: Mapping[str, pl.DataFrame], *, legend: bool = True) -> Panel:
    """Return the gap of ``proxy_and_truth`` by label, between reward model score and true accuracy:
    it grows where the policy learns what the model prefers."""
    return Panel(
        f"{title}: gap",
        [
            Line(label, list(frame.select("step", "gap").iter_rows()), colour)
            for colour, (label, frame) in enumerate(curves.items())
        ],
        note="scaled score minus scaled accuracy",
        y_label="gap",
        limits=(-1.05, 1.05),
        legend=legend,
    )

"""Writes reports: of one run, with the picture of its lineage, and of several with their curves
overlaid.

A report is one HTML file without scripts or anything to load, so that it opens from a disk, offline
and under a policy that forbids both. Whatever a model, a data set or a reward wrote is escaped by
the template engine; nothing is marked as safe.
"""

import base64
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from matplotlib.patches import FancyBboxPatch

from rlcore.recipes.redaction import redact
from rlcore.report import evaluation, samples
from rlcore.report.draw import INK, Panel, curves, new_figure, picture, proxy_panels, saved
from rlcore.report.facts import (
    CACHED,
    GONE,
    MADE,
    OPEN,
    RL,
    Ending,
    Facts,
    Iterations,
    StageFacts,
    gather,
)
from rlcore.report.text import PHASES, clean, cut, duration, number, shortened
from rlcore.results.run import Run
from rlcore.store.checks import ArtifactError
from schemas.stages import stage_parents

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


INDEX = "index.html"
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Table:
    """A section that the caller adds: rows of text, numbers or None, a cell per column."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def write_report(
    run: Run,
    folder: Path,
    ending: Ending | None = None,
    *,
    name: str = INDEX,
    facts: Facts | None = None,
) -> Path:
    """Write the report of ``run`` as ``name`` into ``folder``, whole or not at all; return its
    path.

    The run may be under way, have ended or have been killed; ``ending`` says how, where that is
    known. ``facts``: those of ``gather``, from who has them already. Raises UserError for a run
    without stages, and where the folder cannot be written.
    """
    facts = facts or gather(run, ending)
    there = {stage.name for stage in facts.stages}
    asked, scores, pruned = [], None, None
    if RL in there:
        try:
            asked = samples.over_iterations(run)
            scores = samples.scores(run)
            pruned = samples.pruned(run)
        except ArtifactError:  # a store that goes away; the rest is worth having
            pass
    planned = [] if facts.state == "completed" else stage_parents(run.recipe)
    proxy = facts.proxy
    return _write(
        folder / name,
        "run.html",
        run=facts,
        to_come=[stage for stage in planned if stage not in there],
        proxy=[] if proxy is None else proxy_panels("reward", {"": proxy}, legend=False),
        lineage=_data_url(lineage_png(facts.stages, facts.recorded), "png"),
        asked=asked,
        scores=scores,
        pruned=pruned,
    )


def write_overlay(runs: Sequence[Run], path: Path, extra: Sequence[Table] = ()) -> Path:
    """Write one page with the curves of several runs over each other; see ``write_report``.

    ``extra``: sections between the evaluations and the curves.
    """
    facts = [gather(run) for run in runs]
    return _write(
        path,
        "overlay.html",
        runs=facts,
        same={
            key
            for key, value in facts[0].overrides.items()
            if all(one.overrides.get(key) == value for one in facts)
        },
        curves=curves({one.name: one.metrics for one in facts}),
        evaluation=evaluation.of_runs({one.name: one.eval_results for one in facts}),
        extra=extra,
    )


def _write(path: Path, template: str, **values: Any) -> Path:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    text = redact(_template(template).render(written=now, phases=PHASES, **values))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".report-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "shortened": shortened,
        "cut": cut,
        "duration": duration,
        "drawn": _drawn,
    }
    return environment.get_template(name)


def _shown(value: Any) -> Any:
    """Return what a template inserts; text of whoever wrote it without what is not seen."""
    return clean(value) if type(value) is str else value


def _drawn(panel: Panel) -> str:
    """Return the picture of a panel, whose title is a caption beside it."""
    return _data_url(picture([panel], titles=False, form="svg"), "svg+xml")


def _data_url(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"

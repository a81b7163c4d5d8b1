"""The lineage of a run as its page shows it: one picture, and one narrow table below it.

Both come from what the run recorded (``Run``), while it goes on or later. All iterations of the
stage rl are one box. ``rl-pipeline lineage`` lists every artifact.
"""

from dataclasses import dataclass
from typing import Any

from rlcore.results.run import Run, StageRecord
from rlcore.rl.history import KIND as ITERATIONS
from schemas.artifacts import ArtifactRef, Manifest
from schemas.stages import Stage, stage_parents
from tasks.run_page.markdown import DIGEST_DIGITS, plain
from tasks.run_page.plots import png_of, white_figure

COLUMN_INCHES, ROW_INCHES = 1.2, 0.62  # seven stages side by side fit the 846 pixels of the UI
BOX = (0.84, 0.62)  # of a column and of a row
MADE, CACHED, OPEN, GONE = "made", "cached", "not ended", "gone"
FILLS = {MADE: "#d7f0dd", CACHED: "#e5e7eb", OPEN: "#fff3cd", GONE: "#fde2e1"}
EDGES = ("#2a6fdb", "#d9731a", "#2f8f4e", "#8e44ad", "#c0392b", "#6b7280", "#111827")
LINE = "#374151"
UI = "../.."  # from the page of an artifact, in either UI to its own pages


@dataclass(frozen=True)
class Step:
    """A stage that a run has come to; ``parents``: what it reads, role -> the stage's name or a
    word for another artifact."""

    record: StageRecord
    state: str
    parents: dict[str, str]
    producer: str


@dataclass(frozen=True)
class Iterations:
    """The iterations of the stage rl; ``best``: that of the result, None before there is one."""

    count: int
    best: int | None


def steps_of(run: Run) -> list[Step]:
    """Return the stages that ``run`` has come to, in order. Raises as ``Run.stages``."""
    records = run.stages
    makers = {(row.result_kind, row.result_key): row.stage for row in records.values()}
    planned = stage_parents(run.recipe)
    steps = []
    for row in records.values():
        manifest = None if row.sha256 is None else run.store.peek(row.result_kind, row.result_key)
        if manifest is not None:
            named = {role: _origin(ref, makers) for role, ref in manifest.parents.items()}
            state = CACHED if row.cached else MADE
            steps.append(Step(row, state, named, manifest.producer))
            continue
        state = OPEN if row.sha256 is None else GONE
        reads = planned.get(Stage(row.stage), {})
        named = {role: stage.value for role, stage in reads.items()}
        steps.append(Step(row, state, named, row.flow_run_id if state == OPEN else ""))
    return steps


def iterations_of(run: Run) -> Iterations | None:
    """Return the iterations up to now; None where there is none. Raises as ``Run.stages``."""
    row = run.stages.get(Stage.RL)
    if row is None:
        return None
    done = run.store.peek(row.result_kind, row.result_key) if row.sha256 is not None else None
    count = done.metadata.get("iteration", 0) if done is not None else _recorded(run)
    return Iterations(count, _best(done)) if count else None


@dataclass(frozen=True)
class Picture:
    """What the picture of a run shows: equal ones need not be drawn twice. The number of iterations
    is in it once the stage rl has ended, and until then in the text below it."""

    steps: list[Step]
    iterations: Iterations | None

    @classmethod
    def of(cls, run: Run) -> "Picture":
        """Raises as ``Run.stages``."""
        iterations = iterations_of(run)
        if iterations is not None and iterations.best is None:
            iterations = Iterations(0, None)
        return cls(steps_of(run), iterations)


def lineage_png(picture: Picture) -> bytes:
    """Return the picture: a box per stage, its artifact and how it came, arrows from what it was
    made from."""
    steps, iterations = picture.steps, picture.iterations
    places = {step.record.stage: index for index, step in enumerate(steps)}
    spans = [places[step.record.stage] - places[p] for step in steps for p in _known(step, places)]
    above = 0.75 + 0.22 * max(spans, default=0)
    below = 1.75 if iterations else 0.75
    height = (above + below) * ROW_INCHES
    figure = white_figure(max(3, len(steps)) * COLUMN_INCHES, height)
    axes = figure.add_subplot()
    axes.set_xlim(-0.5, max(3, len(steps)) - 0.5)
    axes.set_ylim(-below, above)
    axes.set_axis_off()
    for step in steps:
        for parent in _known(step, places):
            _arrow(axes, places[parent], places[step.record.stage])
    for step in steps:
        row = step.record
        note = f"{step.state}, {row.seconds:.0f} s" if row.seconds is not None else step.state
        _box(axes, (places[row.stage], 0.0), f"{row.stage}\n{note}", step.state)
    if iterations is not None:
        _iterations_box(axes, places[Stage.RL], iterations, steps[places[Stage.RL]].state)
    return png_of(figure)


def lineage_markdown(run: Run, *, picture: str, report: str | None) -> str:
    """Return the page's text: the picture at the address ``picture``, a row per stage, and a link
    to ``report`` where there is one. Raises as ``Run.stages``."""
    lines = [
        "## Lineage",
        "",
        f"![stages and what each was made from]({picture})",
        "",
        "| stage | cached | artifact | made from | by | seconds |",
        "|:-|:-|:-|:-|:-|-:|",
        *map(_row, steps_of(run)),
        "",
    ]
    if (iterations := iterations_of(run)) is not None:
        best = "" if iterations.best is None else f", the policy is that of {iterations.best}"
        lines += [f"Iterations of rl: {iterations.count}{best}.", ""]
    lines += [f"[Report of this run]({report})", ""] if report else []
    lines += [f"Every artifact of it: `rl-pipeline lineage {run.name}`"]
    return "\n".join(lines)


def _row(step: Step) -> str:
    row = step.record
    came = {MADE: "no", CACHED: "yes"}.get(step.state, step.state)
    reads = [
        role if role == origin else f"{role} ({origin})" for role, origin in step.parents.items()
    ]
    by = f"[{step.producer[:8]}]({UI}/runs/flow-run/{step.producer})" if step.producer else ""
    cells = [
        plain(row.stage),
        came,
        f"{plain(row.result_kind)} `{row.result_key[:DIGEST_DIGITS]}`",
        plain(", ".join(reads)),
        by,
        "" if row.seconds is None else f"{row.seconds:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _origin(ref: ArtifactRef, makers: dict[tuple[str, str], str]) -> str:
    """Return the stage that made ``ref``, the number of an iteration, or the artifact's kind."""
    if ref.kind == ITERATIONS:
        return f"iteration {int(ref.key.rpartition('/')[2])}"
    return makers.get((ref.kind, ref.key), ref.kind)


def _recorded(run: Run) -> int:
    """Return the last iteration that is recorded of a run that is under way."""
    return max(run.recorded(ITERATIONS), default=0)


def _best(policy: Manifest | None) -> int | None:
    return None if policy is None else policy.metadata.get("best_iteration")


def _known(step: Step, places: dict[str, int]) -> list[str]:
    return [stage for stage in dict.fromkeys(step.parents.values()) if stage in places]


def _box(axes: Any, centre: tuple[float, float], text: str, state: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    width, height = BOX
    corner = (centre[0] - width / 2, centre[1] - height / 2)
    style = "round,pad=0,rounding_size=0.06"
    dashes = "--" if state in (OPEN, GONE) else "-"
    axes.add_patch(
        FancyBboxPatch(
            corner, width, height, style, facecolor=FILLS[state], edgecolor=LINE, linestyle=dashes
        )
    )
    axes.text(*centre, text, ha="center", va="center", fontsize=8, color="#111827", linespacing=1.4)


def _iterations_box(axes: Any, column: int, iterations: Iterations, state: str) -> None:
    noun = "iteration" if iterations.count == 1 else "iterations"
    text = f"rl: {iterations.count} {noun}\nbest: {iterations.best}"
    if iterations.best is None:
        text = "rl: iterations\nso far"
    _box(axes, (column, -1.2), text, state)
    start, end = (column, -1.2 + BOX[1] / 2), (column, -BOX[1] / 2)
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": LINE})


def _arrow(axes: Any, start: int, end: int) -> None:
    """Draw an arrow between neighbours, or an arc above the boxes between, in the parent's
    colour. Arcs leave a box to the right of its middle and come in to the left of it."""
    colour = EDGES[start % len(EDGES)]
    if end - start == 1:
        tail, head = (start + BOX[0] / 2, 0), (end - BOX[0] / 2, 0)
        axes.annotate("", head, tail, arrowprops={"arrowstyle": "-|>", "color": colour})
        return
    span = end - start
    tail, head = (start + 0.2, BOX[1] / 2), (end - 0.1 - 0.28 * (span - 2) / 4, BOX[1] / 2)
    top = 0.45 + 0.22 * span
    shape = f"arc,angleA=90,angleB=90,armA={_points(top)},armB={_points(top)},rad=8"
    arrow = {"arrowstyle": "-|>", "color": colour, "connectionstyle": shape, "linewidth": 1.1}
    axes.annotate("", head, tail, arrowprops={**arrow, "shrinkA": 0, "shrinkB": 0})


def _points(rows: float) -> float:
    """Return the length of a part of a row above a box, in points, of which 72 are an inch."""
    return (rows - BOX[1] / 2) * ROW_INCHES * 72

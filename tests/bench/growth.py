"""How an iteration grows with prompts, samples of a prompt, length and size of the model: a line
fitted to each, in one process, and a picture of them.

The picture is ``runs/growth.png``. Axes: X points of an axis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from flows.paths import ROOT
from tests.bench.figure import Growth, draw_growth
from tests.bench.grpo import IN_PROCESS, SMALL, WARMUP, Job, job_of, sides
from tests.bench.measures import Measure

FIGURE = ROOT / "runs" / "growth.png"
POINTS: Mapping[str, Sequence[int]] = {
    "prompts": (8, 16, 32, 64),
    "samples": (4, 8, 16, 32),
    "new_tokens": (12, 24, 48, 96),
    "hidden_size": (64, 128, 256, 512),
}
UNITS = {
    "prompts": "ms a prompt",
    "samples": "ms a sample of each prompt",
    "new_tokens": "ms a token of each answer",
    "hidden_size": "ms a million parameters",
}
CONTEXT = 192  # tokens
HEAD_SIZE = 32


@dataclass(frozen=True, slots=True)
class Line:
    """``seconds`` = ``fixed_s`` + ``slope_s`` * x by least squares; ``r2``: share of the variance
    that it explains."""

    fixed_s: float
    slope_s: float
    r2: float


def measures() -> list[Measure]:
    """Return the line of each axis, and draw them; about six minutes."""
    result, panels = [], []
    with TemporaryDirectory() as name:
        for axis, points in POINTS.items():
            found = [_timed(Path(name), axis, point) for point in points]
            line = fitted([x for x, _ in found], [seconds for _, seconds in found])
            shown = ", ".join(f"{x:.3g}: {seconds:.3f}" for x, seconds in found)
            result += [
                Measure(f"growth with {axis}, {UNITS[axis]}", round(1000 * line.slope_s, 3)),
                Measure(f"growth with {axis}, fixed, s", round(line.fixed_s, 3), note=shown),
                Measure(f"growth with {axis}, share of variance in the line", round(line.r2, 3)),
            ]
            panels.append(_panel(axis, found, line))
    draw_growth(panels, FIGURE)
    return result


def fitted(xs_X: Sequence[float], seconds_X: Sequence[float]) -> Line:
    """Return the line of least squares."""
    slope, fixed = np.polyfit(xs_X, seconds_X, 1)
    rest = np.asarray(seconds_X) - (fixed + slope * np.asarray(xs_X))
    return Line(float(fixed), float(slope), float(1 - rest.var() / np.var(seconds_X)))


def _timed(folder: Path, axis: str, point: int) -> tuple[float, float]:
    """Return a point's place on its axis, parameters in millions, and the seconds of an
    iteration."""
    place = folder / f"{axis}-{point}"
    place.mkdir()
    shape = {"max_position_embeddings": CONTEXT}
    if axis == "hidden_size":
        heads = point // HEAD_SIZE
        shape |= {axis: point, "intermediate_size": 2 * point}
        shape |= {"num_heads": heads, "num_kv_heads": heads // 2}
    job: Job = job_of(place, replace(SMALL, shape=shape, steps=8))
    if axis != "hidden_size":
        job = replace(job, **{axis: point})
    run = sides()[IN_PROCESS](asdict(replace(job, folder=str(place / "run"))))
    x = _parameters(place / "model") / 1e6 if axis == "hidden_size" else point
    return x, median(step["seconds"] for step in run.steps[WARMUP:])


def _parameters(model: Path) -> int:
    from rlcore.models.weight_files import checkpoint_shapes

    return sum(int(np.prod(shape)) for shape in checkpoint_shapes(model).values())


def _panel(axis: str, found: Sequence[tuple[float, float]], line: Line) -> Growth:
    ends = (found[0][0], found[-1][0])
    return Growth(
        title=axis,
        measured=found,
        fitted=[(x, line.fixed_s + line.slope_s * x) for x in ends],
        line=f"{line.fixed_s:.2f} s + {1000 * line.slope_s:.1f} {UNITS[axis]}",
    )

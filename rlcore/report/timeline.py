"""The timeline of one iteration: which phase and which engine was busy when, the median iteration
of a run standing for all."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from rlcore.report.draw import COLOURS, INK, add_legend, new_figure, saved
from rlcore.report.text import PHASES
from rlcore.results.metrics import KIND
from rlcore.results.run import RL, Run
from rlcore.rl.metrics import AHEAD, LOOP, STEP, TIMING, WAIT
from rlcore.store.tables import polars_schema

WORDS = PHASES | {WAIT: "waiting for rows", "record": "record"}
_PARTS = ("gen", "update_actor", "adv", "reward", "sync", "testing", "update_critic")
_SHOWN: dict[str, str] = dict(zip(_PARTS, COLOURS, strict=False))  # others are in the ink
_WAITS = (WAIT, "testing")  # what the loop does when it waits for those who sample
WIDTH_INCHES, LANE_INCHES = 8.4, 0.3
MOST_LANES = 10  # further engines are left out
LEAST_LABEL = 0.03  # of the width: a shorter bar has no number


@dataclass(frozen=True, slots=True)
class Bar:
    """``lane`` was busy with ``what`` for ``iteration``; times in s, from 0 = it began."""

    lane: str
    what: str
    iteration: int
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened during ``iteration``, which took ``seconds``: bars by lane."""

    iteration: int
    seconds: float
    bars: Sequence[Bar]

    @property
    def lanes(self) -> list[str]:
        """The lanes from above: the loop, who samples ahead, the engines."""
        found = {bar.lane for bar in self.bars} - {LOOP, AHEAD}
        engines = sorted(found, key=lambda lane: (len(lane), lane))
        return [*(lane for lane in (LOOP, AHEAD) if self.of(lane)), *engines][:MOST_LANES]

    def of(self, lane: str) -> list[Bar]:
        """Return the bars of ``lane``."""
        return [bar for bar in self.bars if bar.lane == lane]

    @property
    def overlap_s(self) -> float:
        """Seconds in which rows were drawn while the loop did something else than wait."""
        drawn = _merged(self.of(AHEAD))
        works = _merged(bar for bar in self.of(LOOP) if bar.what not in _WAITS)
        return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in drawn for b in works)

    @property
    def summary(self) -> str:
        """The picture in words: seconds by lane and phase, and what overlapped."""
        parts = [f"iteration {self.iteration}, {self.seconds:.2f} s"]
        for lane in self.lanes:
            took: dict[str, float] = {}
            for bar in self.of(lane):
                word = WORDS.get(bar.what, bar.what)
                took[word] = took.get(word, 0.0) + bar.ended_s - bar.began_s
            parts.append(f"{lane}: " + ", ".join(f"{w} {s:.2f} s" for w, s in took.items()))
        both = "sampling and training take turns"
        if self.of(AHEAD):
            both = f"rows are drawn ahead during {self.overlap_s:.2f} s in which the loop works"
        return "; ".join([*parts, both])


def timeline_of(run: Run, rl: pl.DataFrame) -> Timeline | None:
    """Return the timeline of the iteration whose ``timing_s/step`` is the median of ``rl``, the
    metrics of RL, the last ``max_staleness`` aside; None where no spans are recorded of it, as in
    stores of older versions."""
    stale = run.recipe.rl.rollout.max_staleness
    steps = rl.filter((pl.col("name") == f"{TIMING}{STEP}") & (pl.col("step") > 0)).sort("step")
    if not steps.height:
        return None
    # During the last ones nothing is sampled ahead any more.
    usual = steps.head(max(1, steps.height - stale)).sort("value", maintain_order=True)
    number = int(usual["step"][(usual.height - 1) // 2])
    reach = range(number, number + stale + 2)
    spans = _spans(run, [*(f"{each:06d}" for each in reach), "end"])
    whole = spans.filter((pl.col("iteration") == number) & (pl.col("what") == STEP))
    if not whole.height:
        return None
    begin, seconds = whole["began_s"][-1], whole["seconds"][-1]
    shown = [number]
    for later in reach[1:]:
        loop = spans.filter((pl.col("iteration") == later) & (pl.col("lane") == LOOP))
        if not loop.height or loop["began_s"].min() < begin + seconds:
            break  # of another process, which took up the run: its clock began anew
        shown.append(later)
    rows = spans.filter(pl.col("iteration").is_in(shown) & (pl.col("what") != STEP))
    bars = []
    for iteration, lane, what, began, took in rows.sort("began_s").iter_rows():
        start, end = max(began - begin, 0.0), min(began - begin + took, seconds)
        if start < end:
            bars.append(Bar(lane, what, iteration, start, end))
    return Timeline(number, seconds, bars)


def _spans(run: Run, names: Iterable[str]) -> pl.DataFrame:
    found = [run.store.glance(KIND, f"{run.records(RL)}/{name}", "spans") for name in names]
    nothing = pl.DataFrame(schema=polars_schema("spans"))
    return pl.concat([nothing, *(frame for frame in found if frame is not None)])


def _merged(bars: Iterable[Bar]) -> list[tuple[float, float]]:
    """Return the times in which any of ``bars`` was under way."""
    found: list[tuple[float, float]] = []
    for bar in sorted(bars, key=lambda bar: bar.began_s):
        if found and bar.began_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], bar.ended_s)
        else:
            found.append((bar.began_s, bar.ended_s))
    return found


def timeline_png(timeline: Timeline) -> bytes:
    """Return the picture: a row per lane, a bar per span in the colour of its phase, with the
    number of the iteration that it was for where that is another one."""
    lanes = timeline.lanes
    height = LANE_INCHES * len(lanes) + 0.85
    figure = new_figure(WIDTH_INCHES, height)
    below, above = 0.45 / height, 0.4 / height
    axes = figure.add_axes((0.08, below, 0.9, 1 - below - above))
    labelled: set[str] = set()
    for row, lane in enumerate(lanes):
        for bar in timeline.of(lane):
            word = WORDS.get(bar.what, bar.what)
            width = bar.ended_s - bar.began_s
            axes.barh(
                row,
                width,
                left=bar.began_s,
                height=0.66,
                color=_SHOWN.get(bar.what, INK),
                alpha=0.3 if bar.what == WAIT else 1.0,
                label=None if word in labelled else word,
            )
            labelled.add(word)
            if bar.iteration != timeline.iteration and width > LEAST_LABEL * timeline.seconds:
                centre = bar.began_s + width / 2, row
                text = f"{bar.iteration}"
                axes.text(*centre, text, ha="center", va="center", fontsize=7, color="#111827")
    axes.set_xlim(0, timeline.seconds)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_xlabel(f"seconds of iteration {timeline.iteration}", fontsize=8, color=INK)
    axes.tick_params(labelsize=8, colors=INK, length=2)
    axes.spines[:].set_color(INK)
    axes.spines[["top", "right"]].set_visible(False)
    add_legend(axes, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=10, fontsize=7)
    return saved(figure)

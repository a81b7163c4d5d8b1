"""The timeline of a report: the median iteration, what overlaps in it, and nothing of another
process or of a store that has none."""

import struct
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from rlcore.report.timeline import MOST_LANES, Bar, Timeline, timeline_of, timeline_png
from rlcore.report.write import write_report
from rlcore.results.metrics import metrics_frame, publish_metrics
from rlcore.results.run import Run
from rlcore.store.tables import polars_schema
from tests.rlcore.report.made import MADE, MadeRun

Row = tuple[int, str, str, float, float]
WIDTH = 846  # pixels that both UIs give to a text


def loop(number: int, began: float, *, first: str = "gen") -> list[Row]:
    """An iteration of 10 s: 4 of rollout, or of waiting for one, 5 of training, 1 of sync."""
    return [
        (number, "loop", first, began, 4.0),
        (number, "loop", "update_actor", began + 4, 5.0),
        (number, "loop", "sync", began + 9, 1.0),
    ]


class Told:
    """A run by hand, whose iterations are ``rows`` and took ``seconds``."""

    def __init__(self, folder: Path, staleness: int = 0) -> None:
        self.made = MadeRun(folder / "runs")
        self.staleness = staleness
        self.seconds: list[float] = []
        self.made.stage("rl", "policy", self.made.key)

    def iteration(
        self, rows: Sequence[Row], seconds: float = 10.0, late: Sequence[Row] = ()
    ) -> None:
        self.seconds.append(seconds)
        number = len(self.seconds)
        frame = metrics_frame("rl", number, {"timing_s/step": seconds})
        schema = polars_schema("spans")
        spans = pl.DataFrame([*late, *rows], schema=schema, orient="row")
        publish_metrics(self.made.store, self.made.key, f"{number:06d}", frame, MADE, spans)

    def run(self) -> Run:
        run = self.made.open()
        rollout = run.recipe.rl.rollout.model_copy(update={"max_staleness": self.staleness})
        rl = run.recipe.rl.model_copy(update={"rollout": rollout})
        return Run(run.folder, run.recipe.model_copy(update={"rl": rl}), run.store)

    def timeline(self) -> Timeline | None:
        run = self.run()
        return timeline_of(run, run.metrics())


def step(number: int, began: float, seconds: float = 10.0) -> Row:
    return (number, "loop", "step", began, seconds)


def test_the_median_iteration_is_shown_and_takes_turns(tmp_path: Path) -> None:
    told = Told(tmp_path)
    engine = [(2, "engine 0", "gen", 31.0, 2.5), (2, "engine 1", "gen", 31.0, 1.0)]
    told.iteration(loop(1, 0.0), seconds=30.0)
    told.iteration([*loop(2, 30.0), *engine], late=[step(1, 0.0, 30.0)])
    told.iteration(loop(3, 40.0), seconds=2.0, late=[step(2, 30.0)])
    timeline = told.timeline()
    assert timeline is not None
    assert (timeline.iteration, timeline.seconds) == (2, 10.0)
    assert timeline.lanes == ["loop", "engine 0", "engine 1"]
    assert timeline.of("engine 0") == [Bar("engine 0", "gen", 2, 1.0, 3.5)]
    assert timeline.overlap_s == 0.0
    assert timeline.summary == (
        "iteration 2, 10.00 s; loop: rollout 4.00 s, update 5.00 s, sync 1.00 s; engine 0: rollout"
        " 2.50 s; engine 1: rollout 1.00 s; sampling and training take turns"
    )
    assert _width(timeline_png(timeline)) <= WIDTH


def ahead(told: Told) -> None:
    """Rows of iteration 3 are drawn from second 2 to 8 of iteration 2, in its training for 4 s."""
    told.iteration(loop(1, 0.0, first="wait"), seconds=9.0)
    drawn = [(2, "ahead", "gen", 6.0, 6.0), *loop(2, 10.0, first="wait")]
    told.iteration(drawn, late=[step(1, 0.0)])
    drawn = [(3, "ahead", "gen", 12.0, 5.0), (3, "ahead", "reward", 17.0, 1.0)]
    told.iteration([*drawn, *loop(3, 20.0, first="wait")], 11.0, late=[step(2, 10.0)])
    told.iteration([], seconds=1.0)


def test_what_is_sampled_ahead_overlaps_training(tmp_path: Path) -> None:
    told = Told(tmp_path, staleness=1)
    ahead(told)
    timeline = told.timeline()
    assert timeline is not None
    assert timeline.iteration == 2
    assert timeline.lanes == ["loop", "ahead"]
    assert timeline.of("ahead") == [
        Bar("ahead", "gen", 2, 0.0, 2.0),
        Bar("ahead", "gen", 3, 2.0, 7.0),
        Bar("ahead", "reward", 3, 7.0, 8.0),
    ], "cut to the iteration that is shown"
    assert timeline.overlap_s == pytest.approx(4.0)
    assert "loop: waiting for rows 4.00 s, update 5.00 s, sync 1.00 s;" in timeline.summary
    assert timeline.summary.endswith("; rows are drawn ahead during 4.00 s in which the loop works")


def test_another_process_whose_clock_began_anew_is_left_out(tmp_path: Path) -> None:
    """Killed after iteration 2: what was drawn then for 3 is drawn again, on another clock."""
    told = Told(tmp_path, staleness=1)
    told.iteration(loop(1, 0.0, first="wait"), seconds=9.0)
    told.iteration(loop(2, 10.0, first="wait"), late=[step(1, 0.0)])
    drawn = [(3, "ahead", "gen", 12.0, 5.0)]
    late = [step(2, 10.0)]
    told.iteration([*drawn, *loop(3, 0.0, first="wait")], 11.0, late=late)
    told.iteration([], seconds=1.0)
    timeline = told.timeline()
    assert timeline is not None
    assert (timeline.iteration, timeline.lanes) == (2, ["loop"])


def test_a_store_without_spans_or_with_damaged_ones_has_a_report(tmp_path: Path) -> None:
    old = MadeRun(tmp_path / "old/runs")
    old.train(old.prepare(), iterations=3)
    run = old.open()
    assert timeline_of(run, run.metrics()) is None
    assert timeline_of(run, metrics_frame("rl", 0, {})) is None
    assert "median time" not in write_report(run, tmp_path).read_text()
    told = Told(tmp_path / "new")
    told.iteration(loop(1, 0.0))
    told.iteration(loop(2, 10.0), late=[step(1, 0.0)])
    assert told.timeline() is not None
    (damaged,) = (tmp_path / "new/runs/store/metrics").glob("*/000002/spans.parquet")
    damaged.write_bytes(b"damaged")
    run = told.run()
    assert timeline_of(run, metrics_frame("rl", 1, {"timing_s/step": 10.0})) is None


def test_the_report_shows_it_with_its_words(tmp_path: Path) -> None:
    told = Told(tmp_path, staleness=1)
    ahead(told)
    text = write_report(told.run(), tmp_path).read_text()
    assert "4.00 s of 10.00 s overlap" in text
    assert 'alt="iteration 2, 10.00 s; loop: waiting for rows 4.00 s' in text


def test_many_engines_fit_the_page() -> None:
    bars = [Bar(f"engine {n}", "gen", 7, 0.0, 1.0) for n in range(64)]
    timeline = Timeline(6, 2.0, [Bar("loop", "gen", 6, 0.0, 1.0), *bars])
    assert timeline.lanes == ["loop", *(f"engine {n}" for n in range(MOST_LANES - 1))]
    assert _width(timeline_png(timeline)) <= WIDTH


def _width(png: bytes) -> int:
    assert png.startswith(b"\x89PNG")
    return struct.unpack(">I", png[16:20])[0]

"""When phases and engines were busy, recorded by real phases: whole, small, and what overlaps is
what the schedule lets overlap."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import UpdateRequest
from rlcore.report.timeline import timeline_of, timeline_png
from rlcore.results.queries import query
from rlcore.results.run import Run, record_stage
from rlcore.rl.drawing import Drawing
from rlcore.rl.phases import Phases
from rlcore.store.artifacts import Lineage
from rlcore.store.reader import ArtifactReader
from schemas.tables import TABLES
from tests.rlcore.results.records import stage_record
from tests.rlcore.rl.test_ahead import run, stale
from tests.rlcore.rl.test_records_history import digits

pytestmark = pytest.mark.timeout(120)
Make = Callable[..., Phases]
TRAINING = ("adv", "update_actor")


def spans_of(phases: Phases) -> pl.DataFrame:
    return query(phases.store, "select * exclude (kind, key, records_key) from spans")


def times(frame: pl.DataFrame, *what: str, lane: str) -> list[tuple[float, float]]:
    rows = frame.filter(pl.col("what").is_in(what) & (pl.col("lane") == lane))
    return [(began, began + took) for began, took in rows.select("began_s", "seconds").iter_rows()]


def meet(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> bool:
    return any(a[0] < b[1] and b[0] < a[1] for a in some for b in others)


def test_without_staleness_phases_take_turns_and_engines_sample_within_theirs(
    make_phases: Make,
) -> None:
    phases = make_phases("quickstart", digits, {"rl.iterations": 2, "rl.validation.every": 2})
    run(phases)
    phases.metrics.close()
    frame = spans_of(phases)
    TABLES["spans"].validate(frame.with_columns(pl.col("iteration").cast(pl.Int64)))
    assert set(frame["lane"]) == {"loop", "engine 0"}
    assert set(frame["iteration"]) == {1, 2}
    loop = frame.filter((pl.col("lane") == "loop") & (pl.col("what") != "step")).sort("began_s")
    ends = loop["began_s"] + loop["seconds"]
    assert (loop["began_s"][1:] >= ends[:-1]).all(), "one after the other"
    for number in (1, 2):
        each = frame.filter(pl.col("iteration") == number)
        ((began, ended),) = times(each, "step", lane="loop")
        assert (each["began_s"] >= began).all()
        assert (each["began_s"] + each["seconds"] <= ended + 1e-3).all()
        names = set(each.filter(pl.col("lane") == "loop")["what"])
        assert names >= {"step", "gen", "reward", *TRAINING, "sync", "record", "save_checkpoint"}
        assert ("testing" in names) == (number == 2)
        (rollout,) = times(each, "gen", lane="loop")
        sampled = times(each, "gen", lane="engine 0")
        assert rollout[0] <= sampled[0][0] <= sampled[0][1] <= rollout[1]
        assert not meet(sampled, times(each, *TRAINING, lane="loop"))
        (load,) = times(each, "sync", lane="engine 0")
        (sync,) = times(each, "sync", lane="loop")
        assert sync[0] <= load[0] <= load[1] <= sync[1]


def test_with_staleness_rows_are_drawn_while_learners_train(
    make_phases: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of iteration 3 while 2 trains: each waits for the other, and neither can go first."""
    phases = make_phases("quickstart", digits, stale(1))
    meeting = threading.Barrier(2, timeout=60)
    sample, update = Drawing._sample, LearnerPool.update

    def samples(drawing: Drawing, prompts: pl.DataFrame, iteration: int) -> Any:
        if iteration == 3:
            meeting.wait()
        return sample(drawing, prompts, iteration)

    def trains(learner: LearnerPool, request: UpdateRequest) -> Any:
        if request.version == 1:
            meeting.wait()
        return update(learner, request)

    monkeypatch.setattr(Drawing, "_sample", samples)
    monkeypatch.setattr(LearnerPool, "update", trains)
    run(phases)
    phases.metrics.close()
    frame = spans_of(phases)
    assert set(frame["lane"]) == {"loop", "ahead", "engine 0"}
    drawn = times(frame, "gen", "reward", lane="ahead")
    assert meet(drawn, times(frame, *TRAINING, lane="loop"))
    assert not times(frame, "gen", lane="loop"), "the loop waits for rows"
    waits = frame.filter(pl.col("what") == "wait")
    assert sorted(waits["iteration"]) == [1, 2, 3, 4, 5]
    for number in range(1, 6):
        each = frame.filter(pl.col("iteration") == number)
        (rollout,) = times(each, "gen", lane="ahead")
        ((_, waited),) = times(each, "wait", lane="loop")
        assert rollout[1] <= waited, "of the iteration that is trained on them"
        assert times(each, "gen", lane="engine 0")


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_timeline_is_drawn_of_what_real_phases_recorded(
    make_phases: Make, tmp_path: Path, staleness: int
) -> None:
    phases = make_phases("quickstart", digits, stale(staleness))
    run(phases)
    phases.metrics.close()
    told = stage_record("made-0123abcd", "rl", kind="policy", key="run", sha256=None)
    record_stage(phases.store, told, Lineage("r", "c"))
    made = Run(tmp_path / told.run, phases.recipe, ArtifactReader(phases.store.root))
    timeline = timeline_of(made, made.metrics())
    assert timeline is not None
    names = {bar.what for bar in timeline.of("loop")}
    assert names >= {"wait" if staleness else "gen", *TRAINING, "sync"}
    assert sum(bar.ended_s - bar.began_s for bar in timeline.of("loop")) <= timeline.seconds
    assert ("ahead" in timeline.lanes) <= (staleness > 0)
    assert timeline_png(timeline).startswith(b"\x89PNG")


def test_rows_of_the_table_do_not_grow_with_those_sampled(make_phases: Make) -> None:
    counts = []
    for samples in (2, 8):
        over = {"rl.rollout.samples": samples, "rl.iterations": 2}
        phases = make_phases("quickstart", digits, over, key=f"of{samples}")
        run(phases)
        phases.metrics.close()
        counts.append(query(phases.store, f"from spans where records_key = 'of{samples}'").height)
    assert counts[0] == counts[1] < 40


def test_a_run_that_is_continued_begins_its_clock_anew(make_phases: Make) -> None:
    """And has each iteration once: those, whose time is known, whole."""
    for iterations in (2, 4):
        phases = make_phases("quickstart", digits, {**stale(1), "rl.iterations": iterations})
        run(phases)
        phases.metrics.close()
    steps = spans_of(phases).filter(pl.col("what") == "step").sort("iteration")
    sql = "select step from metrics where name = 'timing_s/step' and step > 0 order by step"
    assert steps["iteration"].to_list() == query(phases.store, sql)["step"].to_list()
    began = dict(steps.select("iteration", "began_s").iter_rows())
    assert began[1] == began[3] == 0.0
    assert began[4] > 0.0

"""What the checks find reaches the log, the store and the run's page, also when the run stops."""

from pathlib import Path
from typing import Any

import pytest
from prefect import flow

from rlcore.diagnostics.watch import DiagnosticError
from rlcore.results.metrics import metrics_frame, publish_metrics
from rlcore.rewards.unscored_rows import RewardFailureError
from rlcore.rl.state import LoopState
from rlcore.rl.workers import Workers
from schemas.artifacts import ArtifactRef
from tasks.run_page.report import IterationReport
from tasks.run_page.tracking import Tracker
from tasks.runtime.caching import StageRun
from tasks.runtime.keys import KeyParts, StageKeys
from tasks.runtime.stage_run import PipelineRun
from tests.rlcore.diagnostics.streams import Metrics, broken, recipe

pytestmark = pytest.mark.timeout(120)

DEAD = broken(lambda i, m: {"actor/zero_gradient_steps": 2.0}, start=10, end=60)
PLATEAU = {0: 0.58, 10: 0.91, 20: 0.9, 30: 0.908}  # validation accuracy by iteration
RATES = {"timing_s/step": 1.0, "perf/total_tokens_per_s": 1.0}


def _stage(tmp_path: Path, **parents: ArtifactRef) -> StageRun:
    config = recipe(store=str(tmp_path / "store"))
    pipeline = PipelineRun(
        config, tmp_path, workers=Workers(config), tracker=Tracker(None, lambda line: None)
    )
    return StageRun(
        pipeline,
        stage="rl",
        kind="policy",
        keys=StageKeys("abc", "i", "f", KeyParts("rl"), {}),
        parents=parents,
    )


def _iterate(run: StageRun, stream: list[Metrics], iterations: range) -> None:
    """Report iterations as the loop does: their metrics are stored first."""
    with IterationReport.open(run) as report:
        for iteration in iterations:
            frame = metrics_frame("rl", iteration, stream[iteration])
            publish_metrics(run.store, run.key, f"{iteration:06d}", frame, run.lineage())
            if iteration:
                report(LoopState(iteration=iteration), stream[iteration] | RATES)


def test_a_hopeless_run_ends_and_its_page_says_why(prefect_server: str, tmp_path: Path) -> None:
    """Killed at iteration 15 and resumed, it ends where it would have ended."""
    run = _stage(tmp_path)

    @flow(name="report-test")
    def stage() -> None:
        _iterate(run, DEAD, range(16))
        _iterate(run, DEAD, range(16, 60))

    state = stage(return_state=True)
    with pytest.raises(DiagnosticError, match="20 iterations in a row up to iteration 29"):
        state.result()
    ref = run.store.find("diagnostics", run.key)
    assert ref is not None
    (found,) = run.store.table(ref, "diagnostics").to_dicts()
    assert (found["check"], found["severity"], found["began"]) == ("dead_updates", "fatal", 10)


def test_a_stall_is_said_again_by_a_run_that_was_resumed(
    prefect_server: str, tmp_path: Path
) -> None:
    """It replays metrics."""
    run = _stage(tmp_path)
    stream = [
        {"critic/never_right_fraction": 0.5, "critic/score/mean": 0.4}
        | ({"val/accuracy": PLATEAU[iteration]} if iteration in PLATEAU else {})
        for iteration in range(33)
    ]

    @flow(name="report-test")
    def stage() -> None:
        _iterate(run, stream, range(31))
        reported.append(_stalled(run))
        _iterate(run, stream, range(31, 33))
        reported.append(_stalled(run))

    reported: list[dict[str, Any]] = []
    stage()
    found, again = reported
    assert found == again
    assert (found["check"], found["severity"], found["began"]) == ("stalled", "warning", 30)
    assert "50.0% of the prompts" in found["message"]
    assert "rl-pipeline ask never-rewarded" in found["remedy"]


def test_an_error_with_a_remedy_is_reported(prefect_server: str, tmp_path: Path) -> None:
    run = _stage(tmp_path)

    @flow(name="report-test")
    def stage() -> None:
        with IterationReport.open(run):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    state = stage(return_state=True)
    with pytest.raises(RuntimeError, match="out of memory"):
        state.result()
    assert "gradient_checkpointing" in _stalled(run)["remedy"]


def test_what_ended_a_run_is_among_its_findings(prefect_server: str, tmp_path: Path) -> None:
    run = _stage(tmp_path)

    @flow(name="report-test")
    def stage() -> None:
        with IterationReport.open(run):
            raise RewardFailureError("9 of 9 rows could not be scored; correct the function")

    state = stage(return_state=True)
    with pytest.raises(RewardFailureError):
        state.result()
    ref = run.store.find("diagnostics", run.key)
    assert ref is not None
    assert run.store.table(ref, "diagnostics")["check"].to_list() == ["reward_errors"]


def _stalled(run: StageRun) -> dict[str, Any]:
    ref = run.store.find("diagnostics", run.key)
    assert ref is not None
    (found,) = run.store.table(ref, "diagnostics").to_dicts()
    return found

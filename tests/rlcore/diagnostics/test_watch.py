"""Episodes begin and end once, and a resumed run has the state of an uninterrupted one."""

import math

import polars as pl
import pytest

from rlcore.diagnostics.watch import (
    CLEAR_AFTER,
    DiagnosticError,
    Diagnostics,
    diagnose,
    findings_frame,
    of_error,
)
from rlcore.results.metrics import metrics_frame
from rlcore.rewards.unscored_rows import RewardFailureError, RewardTimeoutError
from rlcore.rl.groups import DynamicSamplingError
from rlcore.rl.guards import SamplerDriftError
from schemas.errors import UserError
from schemas.tables import TABLES
from tests.rlcore.diagnostics.streams import Metrics, broken, healthy, recipe


def _truncated(start: int, end: int) -> list[Metrics]:
    return broken(lambda i, m: {"response_length/clip_ratio": 0.5}, start=start, end=end)


def _table(stream: list[Metrics]) -> pl.DataFrame:
    return pl.concat([metrics_frame("rl", step, metrics) for step, metrics in enumerate(stream)])


def test_an_episode_is_reported_at_its_start_and_its_end() -> None:
    said: list[str] = []
    diagnostics = Diagnostics(recipe(), log=said.append)
    for iteration, metrics in enumerate(_truncated(10, 20)):
        diagnostics.observe(iteration, metrics)
    over = 20 + CLEAR_AFTER - 1
    assert [line.split(":")[0] for line in said] == ["iteration 12", f"iteration {over}"]
    assert said[1] == f"iteration {over}: truncation, reported at iteration 12, is over"
    (found,) = diagnostics.findings
    assert (found.began, found.ended) == (12, over)


def test_trouble_that_comes_back_is_reported_again_but_flicker_is_not() -> None:
    stream = _truncated(10, 20)
    for iteration in (22, 24, 50, 51, 52):
        stream[iteration] = {**stream[iteration], "response_length/clip_ratio": 0.5}
    diagnosed = diagnose(recipe(), _table(stream))
    assert [found.began for found in diagnosed.findings] == [12, 52]


@pytest.mark.parametrize("killed_after", [1, 11, 15, 22, 40])
def test_a_resumed_run_says_what_was_not_said(killed_after: int) -> None:
    """A warning that is repeated after every kill, or never appears, means nothing."""
    stream = _truncated(10, 20)
    before: list[str] = []
    first = Diagnostics(recipe(), log=before.append)
    for iteration in range(killed_after + 1):
        first.observe(iteration, stream[iteration])
    # A killed attempt may leave a table beyond the checkpoint it is resumed from.
    stored = _table(stream[: killed_after + 2])
    after: list[str] = []
    resumed = Diagnostics(recipe(), log=after.append)
    resumed.replay(stored.filter(pl.col("step") <= killed_after))
    for iteration in range(killed_after + 1, len(stream)):
        resumed.observe(iteration, stream[iteration])
    whole: list[str] = []
    uninterrupted = Diagnostics(recipe(), log=whole.append)
    for iteration, metrics in enumerate(stream):
        uninterrupted.observe(iteration, metrics)
    assert before + after == whole
    assert resumed.findings == uninterrupted.findings


def test_a_resumed_run_ends_where_an_uninterrupted_one_ends() -> None:
    dead = broken(lambda i, m: {"actor/zero_gradient_steps": 2.0}, start=10, end=60)
    resumed = Diagnostics(recipe(), log=lambda line: None)
    resumed.replay(_table(dead).filter(pl.col("step") < 25))
    for iteration in range(25, 29):
        resumed.observe(iteration, dead[iteration])
    with pytest.raises(DiagnosticError, match="20 iterations in a row up to iteration 29"):
        resumed.observe(29, dead[29])


def test_a_run_started_again_after_its_end_continues_only_once_fixed() -> None:
    dead = broken(lambda i, m: {"actor/zero_gradient_steps": 2.0}, start=10, end=30)
    again = Diagnostics(recipe(), log=lambda line: None)
    again.replay(_table(dead).filter(pl.col("step") < 30))
    again.observe(30, dead[30])
    (found,) = [found for found in again.findings if found.check == "dead_updates"]
    assert found.severity == "fatal"


def test_what_is_not_finite_is_the_same_live_and_replayed() -> None:
    """The table keeps null where the run saw NaN or infinity."""
    stream = broken(lambda i, m: {"actor/grad_norm": math.inf}, start=10, end=20)
    live = Diagnostics(recipe(), log=lambda line: None)
    for iteration, metrics in enumerate(stream):
        live.observe(iteration, metrics)
    assert [found.check for found in live.findings] == ["not_finite"]
    assert diagnose(recipe(), _table(stream)).findings == live.findings


def test_metrics_that_an_algorithm_does_not_have_are_not_asked_for() -> None:
    """Critic warm-up trains no policy, and a user's reward may judge no correctness."""
    few = {"critic/score/mean", "timing_s/step"}
    stream = [{n: v for n, v in metrics.items() if n in few} for metrics in healthy()]
    assert diagnose(recipe("quickstart-vapo"), _table(stream)).findings == []


def test_findings_are_rows_of_their_table() -> None:
    findings = diagnose(recipe(), _table(_truncated(10, 20))).findings
    out_of_memory = of_error(RuntimeError("CUDA out of memory. Tried 2 GiB"), 7, recipe())
    assert out_of_memory is not None
    assert "hardware.learner.gradient_checkpointing" in out_of_memory.remedy
    for found in ([], findings, [*findings, out_of_memory]):
        TABLES["diagnostics"].validate(findings_frame(found))
    assert of_error(RuntimeError("the learner died"), 7, recipe()) is None


@pytest.mark.parametrize(
    ("error", "name", "check"),
    [
        (RewardFailureError("all rows failed; correct it"), "quickstart", "reward_errors"),
        (RewardTimeoutError("all rows were late; raise it"), "quickstart", "reward_timeouts"),
        (DynamicSamplingError("kept 0; change it"), "quickstart-dapo", "filtered_ratio"),
        (SamplerDriftError("they differ; rerun"), "quickstart", "sampler_drift"),
    ],
)
def test_the_check_that_explains_an_end_has_failed(error: UserError, name: str, check: str) -> None:
    """It was listed as silent beside the error that it looks out for."""
    diagnostics = Diagnostics(recipe(name), log=lambda line: None)
    assert diagnostics.findings_until(ValueError("other"), 3) == []
    (found,) = diagnostics.findings_until(error, 3)
    assert (found.check, found.severity, found.began, found.ended) == (check, "fatal", 3, None)
    assert f"{found.message}; {found.remedy}" == str(error)


def test_a_warning_that_came_true_is_one_finding() -> None:
    stream = broken(lambda i, m: {"reward/error_fraction": 0.04}, start=10, end=20)
    diagnostics = Diagnostics(recipe(), log=lambda line: None)
    diagnostics.replay(_table(stream).filter(pl.col("step") < 15))
    (found,) = diagnostics.findings_until(RewardFailureError("too many; correct it"), 15)
    assert (found.check, found.severity, found.began) == ("reward_errors", "fatal", 10)

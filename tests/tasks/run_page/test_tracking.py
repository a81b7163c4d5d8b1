"""wandb is a view: it records what it can and never stops or slows a run."""

import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flows.paths import ROOT
from rlcore.results.metrics import metrics_frame
from schemas.recipe import Recipe
from tasks.run_page import tracking
from tasks.run_page.tracking import Tracker
from tests.tasks.run_page.tracked_run import METRIC, RUN, tracked_recipe
from tests.tasks.run_page.wandb_server import WandbServer, wandb_server

OF_A_USER = "val-core/math*hard.jsonl/acc/mean@1"  # with a data source's own name

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer than a run would: beside other work wandb may take half a minute to start."""
    monkeypatch.setattr(tracking, "CLOSE_S", 150.0)


def _track(recipe: Recipe, directory: Path, logged: threading.Event | None = None) -> list[str]:
    """Log three RL steps, set ``logged``, log another stage's; return the warnings."""
    warnings: list[str] = []
    with Tracker.open(
        recipe, directory, run_id=RUN, name="tracked", warn=warnings.append
    ) as tracker:
        for step in range(3):
            tracker.log({"actor/pg_loss": step / 10, OF_A_USER: 1.0}, step=step, stage="rl")
        if logged is not None:
            logged.set()
        tracker.log({"reward_model/loss": 0.5}, step=1, stage="reward_model")
    return warnings


def test_logging_does_not_wait_for_wandb_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wandb starts only once three steps are logged; a call that waited for it would never end."""
    import wandb

    init, logged = wandb.init, threading.Event()

    def start_late(**settings: Any) -> Any:
        assert logged.wait(300), "logging waits for wandb to start"
        return init(**settings)

    monkeypatch.setattr(wandb, "init", start_late)
    assert _track(tracked_recipe(), tmp_path, logged) == []
    assert list(tmp_path.glob("wandb/offline-run-*"))


def test_offline_run_holds_the_metrics_over_their_step(tmp_path: Path) -> None:
    assert _track(tracked_recipe(), tmp_path) == []
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    (file,) = folder.glob("run-*.wandb")
    deadline = time.monotonic() + 300
    while b"reward_model/loss" not in (written := file.read_bytes()):
        assert time.monotonic() < deadline, "wandb's own process has not written the last row"
        time.sleep(0.1)
    assert written.count(b"actor/pg_loss") >= 3
    assert written.count(b"training/global_step") >= 3, "curves would be drawn over wandb's steps"
    assert b"reward_model/step" in written, "the stage reward_model would fail on its first step"
    assert folder.name.endswith(RUN), "a retried run would begin a second wandb run"


def test_a_failing_wandb_is_one_warning(tmp_path: Path) -> None:
    warnings = _track(tracked_recipe(project="no/such:project"), tmp_path)
    assert len(warnings) == 1
    assert "wandb is off" in warnings[0]


def test_switched_off_writes_nothing(tmp_path: Path) -> None:
    _track(tracked_recipe(wandb=False), tmp_path)
    assert not (tmp_path / "wandb").exists()


STEP = tracking.STEP_METRICS["rl"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A server of wandb's, which somebody is logged in to."""
    with wandb_server() as started:
        monkeypatch.setenv("WANDB_BASE_URL", started.url)
        monkeypatch.setenv("WANDB_API_KEY", secrets.token_hex(20))
        monkeypatch.setenv("WANDB__FILE_STREAM_TRANSMIT_INTERVAL", "0.2")  # seconds; else 15
        monkeypatch.delenv("WANDB_MODE")
        yield started


@pytest.fixture(autouse=True)
def _own_service() -> Iterator[None]:
    """End wandb's own process, which keeps the address that it was started with."""
    yield
    if "wandb" in sys.modules:
        import wandb

        wandb.teardown()


def _start(folder: Path, first: int, last: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.tasks.run_page.tracked_run", str(folder)]
    return subprocess.Popen(
        [*words, str(first), str(last)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _steps(server: WandbServer, run: str = RUN) -> list[int]:
    return [step for step, _ in server.curve(run, METRIC, STEP)]


@pytest.mark.slow
def test_each_step_is_there_once_after_a_kill_and_a_resume(
    server: WandbServer, tmp_path: Path
) -> None:
    """The killed run has sent iterations that the resumed one takes again."""
    killed = _start(tmp_path, 1, 5)
    deadline = time.monotonic() + 300
    while _steps(server) != [1, 2, 3, 4, 5]:
        assert time.monotonic() < deadline, f"the server has {_steps(server)}"
        time.sleep(0.1)
    killed.kill()
    killed.wait(300)
    resumed = _start(tmp_path, 4, 8)
    said, _ = resumed.communicate("", timeout=300)
    assert said == "logged\nclosed\n"
    assert server.curve(RUN, METRIC, STEP) == [(n, n / 10) for n in range(1, 9)]


def _metrics() -> pl.DataFrame:
    """Metrics of two stages that count their own steps and have a name in common."""
    frames = [
        *(metrics_frame("rl", n, {METRIC: n / 10, "perf/throughput": 5.0}) for n in range(4)),
        *(
            metrics_frame("sft", n, {"sft/loss": 1 / n, "perf/throughput": 9.0})
            for n in range(1, 8)
        ),
        metrics_frame("rl", 3, {"timing_s/step": 2.5, "reward/my.mod:f/mean": 1.0}),
        metrics_frame("rl", 2, {"broken": float("nan")}),
    ]
    return pl.concat(frames)


def test_a_run_from_nothing_sends_both_stages(server: WandbServer, tmp_path: Path) -> None:
    """As a run does that first trains by SFT; iterations of an earlier attempt are sent, too."""
    warnings: list[str] = []
    with Tracker.open(
        tracked_recipe(), tmp_path, run_id=RUN, name="n", warn=warnings.append
    ) as tracker:
        tracker.log({"sft/loss": 0.5, "perf/throughput": 9.0}, step=1, stage="sft")
        tracker.log_table(_metrics().filter(stage="rl"))
        tracker.log({METRIC: 0.4}, step=4, stage="rl")
        tracker.log({METRIC: 0.4}, step=4, stage="rl")
    assert warnings == []
    assert _steps(server) == [0, 1, 2, 3, 4]
    assert server.curve(RUN, "sft/perf/throughput", "sft/step") == [(1, 9.0)]


@pytest.mark.parametrize(
    "when", ["from the start", pytest.param("half-way", marks=pytest.mark.slow)]
)
def test_a_server_that_hangs_delays_no_run(
    when: str, server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit_s in (("INIT_S", 1.0), ("FINISH_S", 2.0), ("CLOSE_S", 30.0)):
        monkeypatch.setattr(tracking, name, limit_s)
    if when == "from the start":
        server.silent.set()
    warnings: list[str] = []
    with Tracker.open(
        tracked_recipe(), tmp_path, run_id=RUN, name="n", warn=warnings.append
    ) as tracker:
        tracker.log({METRIC: 0.1}, step=1, stage="rl")
        deadline = time.monotonic() + 300
        while not (server.silent.is_set() or _steps(server)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        server.silent.set()
        began = time.monotonic()
        tracker.log({METRIC: 0.2}, step=2, stage="rl")
        assert time.monotonic() - began < 1.0
    assert time.monotonic() - began < 25.0
    assert len(warnings) == 1
    assert "wandb is off" in warnings[0]


def test_a_stage_that_was_measured_twice_is_logged_once() -> None:
    logged: list[tuple[int, dict[str, float]]] = []
    tracker = Tracker(None, print)
    with tracker.told(lambda step, metrics: logged.append((step, dict(metrics)))):
        tracker.log_table(_metrics().filter(stage="rl"))
    assert [step for step, _ in logged] == [0, 1, 2, 3]
    assert logged[-1][1] == {
        METRIC: 0.3,
        "perf/throughput": 5.0,
        "timing_s/step": 2.5,
        "reward/my.mod:f/mean": 1.0,
    }

"""wandb is a view: it records what it can and never stops or slows a run."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from schemas.recipe import Recipe
from tasks.run_page import tracking
from tasks.run_page.tracking import Tracker

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer than a run would: beside other work wandb may take half a minute to start."""
    monkeypatch.setattr(tracking, "CLOSE_S", 150.0)


def _recipe(**tracking: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "tracked",
            "model": {"path": "some/model", "dtype": "float32"},
            "data": {"sources": [{"kind": "gsm8k"}]},
            "reward": {"functions": [{"name": "gsm8k"}]},
            "tracking": tracking,
        }
    )


def _track(recipe: Recipe, directory: Path, logged: threading.Event | None = None) -> list[str]:
    """Log three RL steps, set ``logged``, log another stage's; return the warnings."""
    warnings: list[str] = []
    with Tracker.open(
        recipe, directory, run_id="run-0123", name="tracked", warn=warnings.append
    ) as tracker:
        for step in range(3):
            tracker.log({"actor/pg_loss": step / 10}, step=step, stage="rl")
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
        assert logged.wait(60), "logging waits for wandb to start"
        return init(**settings)

    monkeypatch.setattr(wandb, "init", start_late)
    assert _track(_recipe(), tmp_path, logged) == []
    assert list(tmp_path.glob("wandb/offline-run-*"))


def test_offline_run_holds_the_metrics_over_their_step(tmp_path: Path) -> None:
    assert _track(_recipe(), tmp_path) == []
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    (file,) = folder.glob("run-*.wandb")
    deadline = time.monotonic() + 60
    while b"reward_model/loss" not in (written := file.read_bytes()):
        assert time.monotonic() < deadline, "wandb's own process has not written the last row"
        time.sleep(0.1)
    assert written.count(b"actor/pg_loss") >= 3
    assert written.count(b"training/global_step") >= 3, "curves would be drawn over wandb's steps"
    assert b"reward_model/step" in written, "the stage reward_model would fail on its first step"
    assert folder.name.endswith("run-0123"), "a retried run would begin a second wandb run"


def test_a_failing_wandb_is_one_warning(tmp_path: Path) -> None:
    warnings = _track(_recipe(project="no/such:project"), tmp_path)
    assert len(warnings) == 1
    assert "wandb is off" in warnings[0]


def test_switched_off_writes_nothing(tmp_path: Path) -> None:
    _track(_recipe(wandb=False), tmp_path)
    assert not (tmp_path / "wandb").exists()

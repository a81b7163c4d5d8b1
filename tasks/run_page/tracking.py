"""Live curves in wandb: a view of the metrics tables, which never delays or stops a run.

The only file that imports wandb. A separate thread imports, opens and sends, so that no iteration
waits for it; its first error is logged and the others are ignored.
"""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas.recipe import Recipe

CLOSE_S = 30.0
# Each stage counts its own steps; wandb plots a metric over the step of its stage, so that a
# resumed run may repeat steps and two stages may overlap.
STEP_METRICS = {
    "sft": "sft/step",
    "reward_model": "reward_model/step",
    "rl": "training/global_step",
}


class Tracker:
    """Queues metrics and sends them in the background. Made by ``Tracker.open``."""

    def __init__(self, settings: Mapping[str, Any] | None, warn: Callable[[str], None]) -> None:
        """``settings``: arguments of ``wandb.init``; None drops everything."""
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._warn = warn
        self._thread: threading.Thread | None = None
        if settings is not None:
            self._thread = threading.Thread(
                target=self._send, args=(dict(settings),), name="wandb", daemon=True
            )
            self._thread.start()

    @classmethod
    @contextmanager
    def open(
        cls,
        recipe: Recipe,
        directory: Path,
        *,
        run_id: str,
        name: str,
        warn: Callable[[str], None],
    ) -> "Iterator[Tracker]":
        """Yield the tracker of a run; its files go below ``directory``/wandb.

        Offline unless WANDB_API_KEY is set (WANDB_MODE overrides that). A run opened again under
        its ``run_id`` continues its wandb run; ``name`` is its display name.
        """
        settings = _settings(recipe, directory, run_id, name) if recipe.tracking.wandb else None
        tracker = cls(settings, warn)
        try:
            yield tracker
        finally:
            tracker.close()

    def log(self, metrics: Mapping[str, float], *, step: int, stage: str) -> None:
        """Queue the metrics of one step of a stage of ``STEP_METRICS``; returns at once."""
        if self._thread is not None:
            self._queue.put({**metrics, STEP_METRICS[stage]: step})

    def close(self) -> None:
        """Send what is queued and end; gives up after ``CLOSE_S`` seconds."""
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._warn(f"wandb did not finish within {CLOSE_S:.0f} s; its curves may be cut short")
        self._thread = None

    def _send(self, settings: dict[str, Any]) -> None:
        try:
            import wandb

            run = wandb.init(
                **settings,
                settings=wandb.Settings(
                    console="off", silent=True, disable_git=True, save_code=False
                ),
            )
            for stage, step_metric in STEP_METRICS.items():
                run.define_metric(step_metric, hidden=True)
                pattern = "*" if stage == "rl" else f"{stage}/*"
                run.define_metric(pattern, step_metric=step_metric)
            while (row := self._queue.get()) is not None:
                run.log(row)
            run.finish()
        except Exception as error:  # noqa: BLE001  training goes on without its curves
            self._warn(f"wandb is off for this run ({type(error).__name__}: {error})")


def _settings(recipe: Recipe, directory: Path, run_id: str, name: str) -> dict[str, Any]:
    directory.mkdir(parents=True, exist_ok=True)
    online = bool(os.environ.get("WANDB_API_KEY"))
    return {
        "project": recipe.tracking.project,
        "entity": recipe.tracking.entity,
        "id": run_id,
        "name": name,
        "resume": "allow" if online else None,
        "mode": os.environ.get("WANDB_MODE") or ("online" if online else "offline"),
        "dir": str(directory.absolute()),
        "config": recipe.model_dump(mode="json"),
        "tags": [recipe.name],
    }

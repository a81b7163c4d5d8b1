"""Curves in wandb: a view of the metrics tables, which never delays or stops a run.

The only file that imports wandb. A separate thread imports, opens and sends, so that no iteration
waits for it; its first error is logged and the others are ignored. Segments that were recorded
offline under one id replace each other when they are synchronised (wandb/wandb#3841, #5865), so a
resumed RL stage logs its earlier iterations again (``Tracker.log_table``).
"""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars as pl

from schemas.recipe import Recipe

INIT_S = 60.0  # a server that has not answered by then is given up
FINISH_S = 20.0  # for what is unsent at the end of a run
CLOSE_S = 30.0  # for opening and finishing together
# Each stage counts its own steps; wandb plots a metric over the step of its stage, so that a
# resumed run may repeat steps and two stages may overlap.
STEP_METRICS = {
    "sft": "sft/step",
    "preference": "preference/step",
    "reward_model": "reward_model/step",
    "rl": "training/global_step",
}

OnStep = Callable[[int, Mapping[str, float]], None]  # step, metrics


class Tracker:
    """Queues metrics and sends them in the background. Made by ``Tracker.open``."""

    def __init__(self, settings: Mapping[str, Any] | None, warn: Callable[[str], None]) -> None:
        """``settings``: arguments of ``wandb.init``; None drops everything."""
        # Of stage, step and metrics; None ends it.
        self._queue: queue.SimpleQueue[tuple[str, int, dict[str, float]] | None]
        self._queue = queue.SimpleQueue()
        self._warn = warn
        self._on_step: OnStep | None = None
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
        settings = None
        if recipe.tracking.wandb:
            directory.mkdir(parents=True, exist_ok=True)
            default = "online" if os.environ.get("WANDB_API_KEY") else "offline"
            mode = os.environ.get("WANDB_MODE") or default
            settings = {
                "project": recipe.tracking.project,
                "entity": recipe.tracking.entity,
                "id": run_id,
                "name": name,
                "mode": mode,
                "resume": "allow" if mode == "online" else None,
                "dir": str(directory.absolute()),
                "config": recipe.model_dump(mode="json"),
                "tags": [recipe.name],
            }
        with closing(cls(settings, warn)) as tracker:
            yield tracker

    def log(self, metrics: Mapping[str, float], *, step: int, stage: str) -> None:
        """Queue the metrics of one step of a stage of ``STEP_METRICS``; returns at once.

        A step that the wandb run has already is not sent again.
        """
        assert stage in STEP_METRICS, f"stage {stage} has no step metric"
        if self._on_step is not None:
            self._on_step(step, metrics)
        if self._thread is not None and self._thread.is_alive():
            self._queue.put((stage, step, dict(metrics)))

    @contextmanager
    def told(self, on_step: OnStep) -> "Iterator[None]":
        """Pass each step that is logged to ``on_step``, for the length of the context."""
        self._on_step = on_step
        try:
            yield
        finally:
            self._on_step = None

    def log_table(self, metrics: pl.DataFrame) -> None:
        """Queue every step of a stage's Metrics table, as ``log`` does.

        A value that was not finite is left out; of one that is there twice the last counts.
        """
        ordered = metrics.drop_nulls("value").sort("step", maintain_order=True)
        table = ordered.select("stage", "step", "name", "value")
        for (stage, step), values in groupby(table.iter_rows(), key=itemgetter(0, 1)):
            self.log({name: value for _, _, name, value in values}, step=step, stage=stage)

    def close(self) -> None:
        """Send what is queued and end; gives up after ``CLOSE_S`` seconds."""
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._warn(
                f"wandb did not finish within {CLOSE_S:.0f} s, so its curves may be cut short;"
                " its metrics are recorded all the same"
            )
        self._thread = None

    def _send(self, settings: dict[str, Any]) -> None:
        try:
            import wandb

            # It would advise to trace the calls of judges with another package.
            os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
            run = wandb.init(
                **settings,
                settings=wandb.Settings(
                    console="off",
                    silent=True,
                    disable_git=True,
                    save_code=False,
                    init_timeout=INIT_S,
                    finish_timeout=FINISH_S,
                    finish_timeout_raises=True,
                ),
            )
            curves = _Curves(run)
            while (row := self._queue.get()) is not None:
                curves.log(*row)
            run.finish()
        except Exception as error:  # noqa: BLE001  training continues without its curves
            self._warn(
                f"wandb is off for this run ({type(error).__name__}: {error}); its metrics are"
                " recorded all the same"
            )


class _Curves:
    """The curves of one wandb run: each step of a stage once, over that stage's own step."""

    def __init__(self, run: Any) -> None:
        self._run = run
        # Of a run that is resumed: what a killed attempt had sent is not sent twice.
        self._last = {stage: run.summary.get(step) for stage, step in STEP_METRICS.items()}
        self._defined: set[str] = set()
        for step in STEP_METRICS.values():
            run.define_metric(step, hidden=True)

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Send one step, unless the run has it."""
        last = self._last[stage]
        if last is not None and step <= last:
            return
        self._last[stage] = step
        row = {_name(stage, name): value for name, value in metrics.items()}
        for name in row:
            self._define(stage, name)
        self._run.log({**row, STEP_METRICS[stage]: step})

    def _define(self, stage: str, name: str) -> None:
        """Plot ``name``, and what begins like it, over the step of its stage.

        Not by its whole name: data sources and functions have "." and "*" in theirs, which wandb
        would read. No two patterns match one name: of several wandb would take any.
        """
        head, slash, _ = name.partition("/")
        pattern = f"{head}/*" if slash else name
        if pattern not in self._defined:
            self._defined.add(pattern)
            self._run.define_metric(pattern, step_metric=STEP_METRICS[stage])


def _name(stage: str, name: str) -> str:
    """Return the name of a metric in wandb: those of a supervised stage begin with the stage, as
    no metric of RL does; else ``perf/throughput`` of both would be one curve."""
    head = name.partition("/")[0]
    supervised = head in STEP_METRICS
    return name if head == stage or (stage == "rl" and not supervised) else f"{stage}/{name}"

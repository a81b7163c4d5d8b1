"""What is on a run's page, from the run's records alone: whoever publishes it, and whenever."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from rlcore.data.datasheet import datasheet
from rlcore.diagnostics.measures import learns_from_a_model
from rlcore.report.facts import Ending, gather
from rlcore.report.write import write_report
from rlcore.results.folders import report_folder
from rlcore.results.metrics import KIND as METRICS
from rlcore.results.metrics import metrics_frame
from rlcore.results.restarts import restarts_of
from rlcore.results.run import Run
from rlcore.results.summary import proxy_and_truth
from rlcore.store.artifacts import ArtifactStore, DamagedArtifact
from schemas.artifacts import ArtifactRef, Manifest
from schemas.recipe import Recipe
from schemas.stages import Stage
from tasks.run_page.artifacts import (
    Drawn,
    publish_completions,
    publish_datasheet,
    publish_diagnostics,
    publish_evaluation,
    publish_export,
    publish_lineage,
    publish_metrics,
    publish_proxy,
    publish_restarts,
    publish_reward_model,
    publish_state,
)
from tasks.run_page.board import Board

TRAINED = (Stage.SFT, Stage.REWARD_MODEL, Stage.RL)  # stages with metrics


@dataclass
class View:
    """The page of the run in ``folder``; remembers what it has read, so that a pass costs what is
    new."""

    folder: Path
    recipe: Recipe
    board: Board
    _frames: dict[str, pl.DataFrame] = field(default_factory=dict)  # of metrics, by key
    _drawn: dict[str, int] = field(default_factory=dict)  # rows of metrics on the page, by stage
    _done: set[str] = field(default_factory=set)
    _lineage: Drawn | None = None

    def publish(self, ending: Ending | None = None) -> None:
        """Publish what is recorded now; ``ending``: how the run ended, where it has.

        Raises ArtifactError where the store cannot be read, and what Prefect's client raises.
        """
        run = Run(self.folder, self.recipe, ArtifactStore(self.recipe.store))
        pictures = report_folder(self.folder)
        metrics = {str(stage): self._read(run, stage) for stage in TRAINED if stage in run.stages}
        facts = gather(run, ending, metrics)
        with self.board.open() as board:
            publish_state(board, run, ending, facts.verdict)
            if restarts := restarts_of(run.store, facts.flow_run_id):
                publish_restarts(board, restarts)
            for stage in TRAINED:
                if stage in run.stages:
                    self._metrics(board, run, stage, metrics[stage], pictures)
            if Stage.RL in run.stages:
                publish_diagnostics(board, facts.findings, facts.checks)
            for stage, publish in _RESULTS.items():
                result = _result(run, stage)
                if result is not None and stage not in self._done:
                    publish(board, run, *result)
                    self._done.add(stage)
            self._lineage = publish_lineage(board, run, pictures, self._lineage)
        write_report(run, pictures, ending, facts=facts)

    def _metrics(
        self, board: Board, run: Run, stage: Stage, known: pl.DataFrame, pictures: Path
    ) -> None:
        if known.height == self._drawn.get(stage, 0):
            return
        publish_metrics(board, stage, known, pictures)
        if stage == Stage.RL:
            curves = proxy_and_truth(known) if learns_from_a_model(run.recipe) else None
            if curves is not None:
                publish_proxy(board, curves, pictures)
        self._drawn[stage] = known.height

    def _read(self, run: Run, stage: Stage) -> pl.DataFrame:
        """Return the metrics of ``stage`` so far; each artifact is read once. A damaged one is left
        out, as ``stage_metrics`` leaves it out."""
        names = sorted(run.store.keys(METRICS, f"{run.records(stage)}/"))
        for name in names:
            if name not in self._frames:
                try:
                    ref = run.store.find(METRICS, name)
                    if ref is not None:
                        self._frames[name] = run.store.table(ref, METRICS)
                except DamagedArtifact:
                    continue
        frames = [self._frames[name] for name in names if name in self._frames]
        found = pl.concat([metrics_frame("", 0, {}), *frames]).sort("step", maintain_order=True)
        if stage == Stage.RL:  # a longer run may have gone on here
            return found.filter(pl.col("step") <= run.recipe.rl.iterations)
        return found


def _result(run: Run, stage: Stage) -> tuple[ArtifactRef, Manifest] | None:
    """Return the result of a stage that has ended, and its manifest; its files are not read."""
    row = run.stages.get(stage)
    if row is None or row.sha256 is None:
        return None
    manifest = run.store.peek(row.result_kind, row.result_key)
    if manifest is None:
        return None
    where = f"{run.store.root}/{row.result_kind}/{row.result_key}"
    ref = ArtifactRef(
        kind=row.result_kind, key=row.result_key, uri=where, sha256=row.sha256, rows=manifest.rows
    )
    return ref, manifest


def _data(board: Board, run: Run, ref: ArtifactRef, manifest: Manifest) -> None:
    if counts := manifest.metadata.get("counts"):  # that of the Python API has none
        publish_datasheet(board, datasheet(counts))


def _reward_model(board: Board, run: Run, ref: ArtifactRef, manifest: Manifest) -> None:
    tables = (run.store.table(ref, name) for name in ("pair_accuracy", "calibration"))
    publish_reward_model(board, *tables)


def _evaluation(board: Board, run: Run, ref: ArtifactRef, manifest: Manifest) -> None:
    publish_evaluation(board, run.store.table(ref, "eval_results"))
    publish_completions(
        board, run.store.table(ref, "completions"), limit=run.recipe.evaluate.completions_shown
    )


def _export(board: Board, run: Run, ref: ArtifactRef, manifest: Manifest) -> None:
    publish_export(board, ref.uri)


_RESULTS: dict[Stage, Callable[[Board, Run, ArtifactRef, Manifest], None]] = {
    Stage.PREPARE_DATA: _data,
    Stage.REWARD_MODEL: _reward_model,
    Stage.EVALUATE: _evaluation,
    Stage.EXPORT: _export,
}

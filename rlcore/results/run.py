"""One run of the pipeline as it is recorded, whether it goes on, has ended or was killed."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.recipes import load_recipe
from rlcore.results.folders import (
    RECIPE,
    RUNS,
    flow_run_digits,
    run_folder,
    run_names,
)
from rlcore.results.metrics import stage_metrics
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError, did_you_mean
from schemas.recipe import Recipe

KIND = "runs"
TABLE = "run_stages"


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A row of the table ``run_stages``; see there."""

    flow_run_id: str
    run: str
    recipe: str
    recipe_digest: str
    seed: int
    overrides: str
    stage: str
    result_kind: str
    result_key: str
    records_key: str
    sha256: str | None
    cached: bool | None
    began: str
    seconds: float | None


def record_stage(store: ArtifactStore, row: StageRecord, lineage: Lineage) -> None:
    """Write what a run came to, as ``runs/<flow run id>/<stage>``; an earlier row of the stage is
    replaced."""
    key = f"{row.flow_run_id}/{row.stage}"
    store.discard(KIND, key)
    values = {name: [getattr(row, name)] for name in StageRecord.__slots__}
    schema = {"seed": pl.Int64, "cached": pl.Boolean, "seconds": pl.Float64}
    text = dict.fromkeys(StageRecord.__slots__, pl.String)
    store.put(
        KIND, key, tables={TABLE: pl.DataFrame(values, schema=text | schema)}, lineage=lineage
    )


@dataclass(frozen=True)
class Run:
    """A run below ``runs/``: its recipe, its stages up to now and what they left in the store.

    run = Run.open("latest")
    run.metrics("rl")
    """

    folder: Path
    recipe: Recipe
    store: ArtifactReader

    @classmethod
    def open(
        cls, name: str = "latest", runs: Path = RUNS, overrides: Mapping[str, Any] | None = None
    ) -> "Run":
        """Return the run ``name``: its folder below ``runs`` or anywhere, or "latest".

        ``overrides`` change its recipe. Raises UserError with the nearest name when there is none.
        """
        folder = run_folder(name, runs)
        if folder is None:
            known = run_names(runs)
            there = ", ".join(known[:5]) or "none; a run makes one"
            raise UserError(
                f"there is no run '{name}' in {runs}{did_you_mean(name, known)}; there are {there}"
            )
        recipe = load_recipe(str(folder / RECIPE), overrides or {}, directory=folder)
        local = folder.absolute().parent.parent / recipe.store
        store = recipe.store if "://" in recipe.store else str(local)
        return cls(folder, recipe.model_copy(update={"store": store}), ArtifactReader(store))

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @cached_property
    def stages(self) -> dict[str, StageRecord]:
        """What is recorded of each stage that the run has come to, in order, by stage.

        Raises UserError for a run that an earlier version of this program made.
        """
        refs = [
            ref
            for key in self.store.keys(KIND, flow_run_digits(self.name))
            if (ref := self.store.find(KIND, key))
        ]
        if not refs:
            raise UserError(
                f"the run '{self.name}' has no stage recorded in {self.store.root}: it has only"
                " begun, or an earlier version of this program made it; run its recipe again"
                f" (rl-pipeline run {self.folder / RECIPE}), which takes from the store what is"
                " there"
            )
        rows = pl.concat([self.store.table(ref, TABLE) for ref in refs]).sort("began")
        return {row["stage"]: StageRecord(**row) for row in rows.iter_rows(named=True)}

    def result(self, stage: str) -> ArtifactRef | None:
        """Return the artifact that ``stage`` made or found, None where it has not ended."""
        row = self.stages.get(stage)
        if row is None or row.sha256 is None:
            return None
        return self.store.find(row.result_kind, row.result_key)

    def records(self, stage: str) -> str:
        """Return the key of the stage's records: checkpoints, metrics, rollouts and so on.

        Raises UserError where the run has not come to the stage.
        """
        row = self.stages.get(stage)
        if row is None:
            raise UserError(
                f"the run '{self.name}' has not come to the stage {stage}; it has"
                f" {', '.join(self.stages)}"
            )
        return row.records_key

    def metrics(self, stage: str = "rl") -> pl.DataFrame:
        """Return all metrics of a stage so far, by step. Raises as ``records``."""
        return stage_metrics(self.store, self.records(stage))

"""One run of the pipeline as it is recorded, whether it is under way, has ended or was killed."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.recipes.load import load_recipe
from rlcore.results.folders import (
    CALL,
    RECIPE,
    RUNS,
    STORE_FOLDER,
    flow_run_digits,
    run_folder,
    run_names,
)
from rlcore.results.metrics import stage_metrics
from rlcore.results.stage_rows import following, newest
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.reader import ArtifactReader
from rlcore.store.tables import polars_schema
from rlcore.store.tombstones import group_of
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError, did_you_mean
from schemas.recipe import Recipe

KIND = "runs"
TABLE = "run_stages"
RL, EVALUATE = "rl", "evaluate"


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
    began: str
    sha256: str | None = None
    cached: bool | None = None
    seconds: float | None = None


def record_stage(store: ArtifactStore, row: StageRecord, lineage: Lineage) -> None:
    """Write what a run came to, as ``runs/<flow run id>/<stage>``; of several rows of a stage the
    newest counts (``rlcore.results.stage_rows``)."""
    stage = f"{row.flow_run_id}/{row.stage}"
    key = following(store.keys(KIND, stage), stage)
    frame = pl.DataFrame([asdict(row)], schema=polars_schema(TABLE))
    store.put(KIND, key, tables={TABLE: frame}, lineage=lineage)


def stage_rows(store: ArtifactReader, prefix: str = "") -> pl.DataFrame | None:
    """Return the newest row of each stage of the runs whose ids begin with ``prefix``, by the time
    at which it began; None where there is none. Raises ArtifactError where one is damaged."""
    refs = [ref for key in newest(store.keys(KIND, prefix)) if (ref := store.find(KIND, key))]
    return pl.concat([store.table(ref, TABLE) for ref in refs]).sort("began") if refs else None


@dataclass(frozen=True)
class Run:
    """A run below ``runs/``: its recipe, its stages up to now and what they left in the store.

    run = Run.open("latest")
    run.trajectories(iteration=20)
    """

    folder: Path
    recipe: Recipe
    store: ArtifactReader

    @classmethod
    def open(
        cls, name: str = "latest", runs: Path = RUNS, overrides: Mapping[str, Any] | None = None
    ) -> "Run":
        """Return the run ``name``: its folder below ``runs`` or anywhere, the output_dir of a call
        of the Python API included, or "latest".

        ``overrides`` change its recipe. Raises UserError with the nearest name when there is none.
        """
        folder = run_folder(name, runs)
        if folder is None:
            known = run_names(runs)
            there = ", ".join(known[:5]) or "none; a run makes one"
            raise UserError(
                f"there is no run '{name}' in {runs}{did_you_mean(name, known)}; there are {there}"
            )
        recipe = load_recipe(str(folder / RECIPE), overrides or {}, directory=folder, recorded=True)
        store = recipe.store.removeprefix("file://")
        if (folder / CALL).is_file():
            store = str(folder.absolute() / STORE_FOLDER)
        elif "://" not in store:
            store = str(folder.absolute().parent.parent / Path(store).expanduser())
        return cls(folder, recipe.model_copy(update={"store": store}), ArtifactReader(store))

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def _recorded(self) -> str:
        """How the keys of its records in ``KIND`` begin."""
        call = self.folder / CALL
        if call.is_file():
            return f"training/{json.loads(call.read_text(encoding='utf-8'))['id']}/"
        return flow_run_digits(self.name)

    @cached_property
    def stages(self) -> dict[str, StageRecord]:
        """What is recorded of each stage that the run has come to, in order, by stage.

        Raises UserError for a run that an earlier version of this program made.
        """
        rows = stage_rows(self.store, self._recorded)
        if rows is None:
            raise UserError(
                f"the run '{self.name}' has no stage recorded in {self.store.root}: it has only"
                " begun, or an earlier version of this program made it; run its recipe again"
                f" (rl-pipeline run {self.folder / RECIPE}), which takes from the store what is"
                " there"
            )
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

    def metrics(
        self, stage: str = "rl", known: dict[str, pl.DataFrame] | None = None
    ) -> pl.DataFrame:
        """Return all metrics of a stage so far, by step; ``known``: see ``stage_metrics``. Raises
        as ``records``."""
        last = self.recipe.rl.iterations if stage == RL else None
        return stage_metrics(self.store, self.records(stage), last=last, known=known)

    def recorded(self, kind: str) -> dict[int, list[str]]:
        """Return the keys of the records of ``kind`` of RL, by iteration, both in order; without
        those of a longer run that continued here. Raises as ``records``."""
        found: dict[int, list[str]] = {}
        for name in self.store.keys(kind, f"{self.records(RL)}/"):
            number = name.rpartition("/")[2].partition("-")[0]
            if number.isdecimal() and int(number) <= self.recipe.rl.iterations:
                found.setdefault(int(number), []).append(name)
        return dict(sorted(found.items()))

    @property
    def iterations(self) -> list[int]:
        """The RL iterations with rollouts in the store, the one under way included."""
        return list(self.recorded("rollouts"))

    def rollouts(self, iteration: int | None = None) -> pl.DataFrame:
        """Return the table ``rollouts`` of all iterations, or of one, with ``round``: dynamic
        sampling draws several, from 0.

        This and the methods below verify what they read: they raise ArtifactError where it is
        damaged, and UserError where the run has no such iteration.
        """
        return self._read("rollouts", iteration)

    def rewards(self, iteration: int | None = None) -> pl.DataFrame:
        """Return the table ``rewards`` with ``iteration`` and ``round``."""
        return self._read("rewards", iteration)

    def advantages(self, iteration: int | None = None) -> pl.DataFrame:
        """Return the table ``advantages`` with ``iteration``: of the rows that were trained on."""
        return self._read("advantages", iteration)

    def trajectories(self, iteration: int | None = None) -> pl.DataFrame:
        """Return rollouts with their rewards and advantages; ``kept``: whether the row was, or is
        to be, trained on, null where the iteration has not come to that."""
        rollouts, rewards = self.rollouts(iteration), self.rewards(iteration)
        advantages = self.advantages(iteration).with_columns(kept=True)
        known = pl.col("iteration").is_in(advantages["iteration"].unique().to_list())
        rows, place = rollouts, ["iteration", "trajectory_id"]
        for table, on in ((rewards, ["round", *place]), (advantages, place)):
            rows = rows.join(table, on=on, how="left", validate="1:1", maintain_order="left")
        kept = pl.when(known).then(pl.col("kept").fill_null(value=False))
        return rows.with_columns(kept.alias("kept"))

    def evaluation(self) -> pl.DataFrame:
        """Return the table ``eval_results``: the figures of each checkpoint.

        Raises UserError where the run has not ended the stage ``evaluate``.
        """
        return self._of_evaluation("eval_results")

    def completions(self) -> pl.DataFrame:
        """Return the table ``completions`` behind these figures. Raises as ``evaluation``."""
        return self._of_evaluation("completions")

    def _of_evaluation(self, table: str) -> pl.DataFrame:
        ref = self.result(EVALUATE)
        if ref is None:
            raise UserError(
                f"the run '{self.name}' has not ended the stage {EVALUATE}; it has come to"
                f" {', '.join(self.stages)}; let it finish, or run its recipe again to continue it"
            )
        return self.store.table(ref, table)

    def _read(self, kind: str, iteration: int | None) -> pl.DataFrame:
        """Return the tables of ``kind`` made from the rollouts that are recorded now."""
        rounds = {
            (number, int(name.rpartition("/")[2].partition("-")[2] or 0)): name
            for number, names in self.recorded("rollouts").items()
            for name in names
        }
        known = sorted({number for number, _ in rounds})
        if iteration is not None and iteration not in known:
            there = f"it has {known[0]} to {known[-1]}" if known else "it has none yet"
            if (gone := pruned_rollouts(self).get(iteration)) is not None:
                there = f"they were {gone}"
            raise UserError(
                f"the run '{self.name}' has no rollouts of iteration {iteration}; {there}"
            )
        if not rounds and (pruned := pruned_rollouts(self)):
            raise UserError(
                f"the run '{self.name}' has no rollouts any more; they were {pruned[max(pruned)]}"
            )
        frames = []
        for (number, round_), name in sorted(rounds.items()):
            if iteration in (None, number) and not (kind == "advantages" and round_):
                frames += _table_of_round(self.store, kind, name, number, round_)
        nothing = _placed(pl.DataFrame(schema=polars_schema(kind)), kind, 0, 0)
        return pl.concat(frames) if frames else nothing


def pruned_rollouts(run: Run) -> dict[int, str]:
    """Return when and why rollouts of RL were pruned and not made again, by iteration.
    Raises as ``Run.records``."""
    key = run.records(RL)
    there = {name for names in run.recorded("rollouts").values() for name in names}
    return {
        int(name.removeprefix(f"{key}/").partition("-")[0]): gone.sentence()
        for (of, name, _), gone in run.store.pruned.below(group_of(key)).items()
        if of == "rollouts" and name.startswith(f"{key}/") and name not in there
    }


def _table_of_round(
    store: ArtifactReader, kind: str, name: str, iteration: int, round_: int
) -> list[pl.DataFrame]:
    """Return the table ``kind`` of the key ``name``, with the iteration and round that it is of in
    front, or nothing where it is of other rollouts than those recorded. Raises ArtifactError."""
    ref = store.find(kind, name)
    if ref is None:
        return []
    for parent in store.manifest(ref).parents.values():
        if parent.kind == "rollouts":
            recorded = store.find(parent.kind, parent.key)
            if recorded is None or recorded.sha256 != parent.sha256:
                return []
    return [_placed(store.table(ref, kind), kind, iteration, round_)]


def _placed(frame: pl.DataFrame, kind: str, iteration: int, round_: int) -> pl.DataFrame:
    """Return a table of records with the iteration and round that it is of, in front."""
    place = [pl.lit(iteration, dtype=pl.Int32).alias("iteration")]
    if kind != "advantages":
        place.append(pl.lit(round_, dtype=pl.Int32).alias("round"))
    rest = [name for name in frame.columns if name not in ("iteration", "round")]
    return frame.select(*place, *rest)

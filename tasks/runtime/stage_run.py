"""One run of the pipeline, and what the body of each of its stages is given: recipe, key, parents,
its rollout engine, and where it puts its result."""

import json
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
from prefect.runtime import flow_run

from rlcore.models.files import model_directory
from rlcore.plan.machine import gpu_facts
from rlcore.recipes.load import recipe_digest, with_learner
from rlcore.results.provenance import (
    CODE,
    ENGINE,
    LAYOUT,
    MACHINE,
    MICRO_BATCH_TOKENS,
    RECIPE,
    machine_state,
    record_code,
    record_inputs,
    record_recipe,
)
from rlcore.results.run import StageRecord
from rlcore.rl.records import newest_engine
from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.tables import TableFile
from rlcore.store.versions import VERSION
from schemas.artifacts import ArtifactRef
from schemas.names import RECORDS
from schemas.recipe import Recipe
from tasks.run_page.page import RunPage
from tasks.run_page.tracking import Tracker
from tasks.runtime.earlier_runs import (
    ACCEPTED,
    IDENTITY,
    TOTAL,
    TRAJECTORY,
    HalfDone,
    Shorter,
    continued_key,
)
from tasks.runtime.keys import GENERATION, MADE_OF, StageKeys, generation_key, generations


@dataclass(frozen=True)
class StageResult:
    """A stage's artifact, whether it came from cache, and how long the call took."""

    stage: str
    ref: ArtifactRef
    cached: bool
    seconds: float


@dataclass
class PipelineRun:
    """One run of the pipeline: what all its stages share.

    ``directory``: this run's own folder. ``page``: the run's page, where it has one. ``overrides``:
    dotted keys that the recipe was changed by. ``accept_code``: a half-done stage that other code
    began continues. ``refresh``: stages that are made again. ``results``: what the stages returned,
    in order. ``flow_run_id``: that of the run, in its subflows too.
    """

    recipe: Recipe
    directory: Path
    workers: Workers = field(kw_only=True)
    tracker: Tracker = field(kw_only=True)
    page: RunPage | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    accept_code: bool = False
    refresh: Collection[str] = ()
    results: list[StageResult] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.flow_run_id = str(flow_run.id)
        writer = f"flow run {flow_run.name} ({flow_run.id})"
        self.store = ArtifactStore(self.recipe.store, writer=writer)

    def refresh_page(self, *, at_once: bool = False) -> None:
        """Show on the run's page what has been recorded; wait for nothing (``RunPage.refresh``)."""
        if self.page is not None:
            self.page.refresh(at_once=at_once)


class StageRun:
    """What the body of a stage is given: the pipeline run, and this stage's key and parents.

    ``records`` is the key of checkpoints, metrics and what else the body keeps apart from its
    result. It differs from ``key`` where the run continues with one that other code began, or that
    was to do fewer iterations.
    ``recipe`` is the pipeline's, but for ``within``.
    ``generation``: how many results of this content there are with this one, of which all but the
    first were asked for (``refresh``).
    """

    def __init__(
        self,
        pipeline: PipelineRun,
        *,
        stage: str,
        kind: str,
        keys: StageKeys,
        parents: Mapping[str, ArtifactRef],
    ) -> None:
        self.pipeline = pipeline
        self.recipe = pipeline.recipe
        self.store, self.tracker = pipeline.store, pipeline.tracker
        self.workers = pipeline.workers
        self.stage = stage
        self.kind = kind
        self.keys = keys
        self.key = self.records = keys.key
        self.parents = parents
        self.generation = 1
        self.reused = False
        self._made_by: dict[str, ArtifactRef] = {}
        self._origin: dict[str, Any] = {}

    def regenerated(self, generation: int) -> "StageRun":
        """Return the run of the same content whose result is the ``generation``-th."""
        run = self.noting({GENERATION: generation} if generation > 1 else {})
        run.key = run.records = generation_key(self.keys.key, generation)
        run.generation = generation
        return run

    def continuing(self, other: HalfDone) -> "StageRun":
        """Return the run that continues with ``other``, which other code began.

        Its result has a separate key: it is what neither code alone would have made.
        """
        code = {"before": other.code, "after": self.keys.code, "step": other.step}
        run = self.noting({RECORDS: other.key, ACCEPTED: code})
        run.key, run.records = continued_key(self.key, other.key), other.key
        return run

    def extending(self, shorter: Shorter) -> "StageRun":
        """Return the run that continues with ``shorter``; its result is what it would have made
        alone, and has that key."""
        before = {"iterations": shorter.total, "step": shorter.step}
        run = self.noting({RECORDS: shorter.key, "longer_than": before})
        run.records = shorter.key
        return run

    def within(self, micro_batch_tokens: int) -> "StageRun":
        """Return this run with learners that take at most so many tokens per pass, which lineage
        then says of all that it makes; the recipe as it is recorded stays."""
        written = self.pipeline.recipe.hardware.learner.micro_batch_tokens
        run = self.noting({MICRO_BATCH_TOKENS: {"recipe": written, "used": micro_batch_tokens}})
        run.recipe = with_learner(self.recipe, micro_batch_tokens=micro_batch_tokens)
        return run

    def noting(self, origin: Mapping[str, Any]) -> "StageRun":
        """Return this run with ``origin`` in the lineage of all that it makes."""
        run = copy(self)
        run._origin = {**self._origin, **origin}
        return run

    def model(self, role: str) -> Path:
        """Return the model directory of the parent ``role``. Raises ArtifactError."""
        return model_directory(self.store.directory(self.parents[role]))

    def resumable(self) -> Lineage:
        """Return the lineage of checkpoints, which says who may continue with them."""
        named = {IDENTITY: self.keys.identity, TRAJECTORY: self.keys.trajectory}
        made_by = {VERSION: self.keys.parts.code[VERSION], TOTAL: self.keys.total}
        layout = {LAYOUT: self.recipe.hardware.learner.layout(self.recipe.model.dtype)}
        return self.lineage(named | made_by | layout)

    def record_origin(self) -> None:
        """Record the recipe and the code; they are parents of all that the stage writes from now
        on, and in no key."""
        lineage = replace(self.lineage(), parents={}, metadata={})
        self._made_by = {
            RECIPE: record_recipe(self.store, self.recipe, lineage),
            CODE: record_code(self.store, lineage),
        }

    def lineage(self, metadata: Mapping[str, Any] | None = None) -> Lineage:
        """Return what the manifest says of origin; ``metadata`` holds JSON values."""
        return Lineage(
            recipe_digest=recipe_digest(self.pipeline.recipe),
            code_fingerprint=self.keys.code,
            parents={**self.parents, **self._made_by},
            producer=flow_run_id(),
            metadata={**self._origin, **(metadata or {})},
        )

    def record(self) -> StageRecord:
        """Return what is recorded of a stage that begins now."""
        return StageRecord(
            flow_run_id=flow_run_id(),
            run=self.pipeline.directory.name,
            recipe=self.recipe.name,
            recipe_digest=recipe_digest(self.recipe),
            seed=self.recipe.seed,
            overrides=json.dumps(self.pipeline.overrides, sort_keys=True),
            stage=self.stage,
            result_kind=self.kind,
            result_key=self.key,
            records_key=self.records,
            began=datetime.now(UTC).isoformat(),
        )

    def put(
        self,
        *,
        tables: Mapping[str, pl.DataFrame | TableFile] | None = None,
        directory: Path | None = None,
        metadata: Mapping[str, Any] | None = None,
        parents: Mapping[str, ArtifactRef] | None = None,
    ) -> ArtifactRef:
        """Store the stage's result under its key, with what that was made of; see
        ``ArtifactStore.put``.

        ``parents``: what the body itself made on the way, by role; it is in no key.
        """
        made = {MADE_OF: asdict(self.keys.parts), MACHINE: machine_state(gpu_facts("name"))}
        lineage = self.lineage({**made, **(metadata or {})})
        read = record_inputs(self.store, self.key, self.keys.reads, self.lineage())
        lineage = replace(lineage, parents={**lineage.parents, **read, **(parents or {})})
        return self.store.put(
            self.kind, self.key, tables=tables, directory=directory, lineage=lineage
        )


def flow_run_id() -> str:
    return str(flow_run.id or "")


def sampling(
    run: StageRun,
    model_dir: Path,
    *,
    recorded: str | None = None,
    kind: str | None = None,
    otherwise: str | None = None,
) -> StageRun:
    """Return ``run`` with its engine chosen, for the model of ``model_dir``, and named in lineage.

    What the recipe names counts first. Then ``recorded``, by what the run continues with; the
    engine of an earlier result of the same content (of ``kind``, by default the stage's own), which
    is being made again; and ``otherwise``. None means nothing is known. At last the rule of
    ``auto``. Raises UserError where the engine cannot run here.
    """
    known = recorded or _of_earlier_result(run, kind or run.kind) or otherwise
    return run.noting({ENGINE: run.workers.choose_engine(model_dir, known)})


def _of_earlier_result(run: StageRun, kind: str) -> str | None:
    numbers = generations(run.store, kind, run.keys.key)
    keys = [generation_key(run.keys.key, number) for number in numbers if number < run.generation]
    return newest_engine(run.store, kind, keys)

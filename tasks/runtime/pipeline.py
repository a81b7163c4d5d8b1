"""One run of the pipeline: what its stages share, and what they returned."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect.runtime import flow_run

from rlcore.report.facts import Ending
from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactStore
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe
from tasks.run_page.page import RunPage
from tasks.run_page.tracking import Tracker


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
        """Show on the run's page what has been recorded, without waiting for it
        (``RunPage.refresh``)."""
        if self.page is not None:
            self.page.refresh(at_once=at_once)

    def end_page(self) -> None:
        """Show that the run has completed."""
        if self.page is not None:
            self.page.end(Ending("completed"))

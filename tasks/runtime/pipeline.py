"""One run of the pipeline: what its stages share, and what they returned."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect.runtime import flow_run

from rlcore.report.facts import Ending
from rlcore.store.artifacts import ArtifactStore
from rlcore.workers.workers import Workers
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


class PipelineRun:
    """One run of the pipeline: what all its stages share. ``directory`` is this run's own folder.

    ``results`` collects what the stages returned, in order.
    """

    __slots__ = (
        "accept_code",
        "directory",
        "flow_run_id",
        "overrides",
        "page",
        "recipe",
        "refresh",
        "results",
        "store",
        "tracker",
        "workers",
    )

    def __init__(
        self,
        recipe: Recipe,
        directory: Path,
        *,
        workers: Workers,
        tracker: Tracker,
        page: RunPage | None = None,
        overrides: Mapping[str, Any] | None = None,
        accept_code: bool = False,
        refresh: Collection[str] = (),
    ) -> None:
        """``page``: the run's page, where it has one. ``overrides``: dotted keys that the recipe
        was changed by. ``accept_code``: a half-done stage that other code began goes on.
        ``refresh``: stages that are made anew."""
        self.accept_code = accept_code
        self.refresh = frozenset(refresh)
        self.overrides = dict(overrides or {})
        self.recipe = recipe
        self.directory = directory
        self.flow_run_id = str(flow_run.id)  # that of the run, in its subflows too
        self.store = ArtifactStore(recipe.store, writer=f"flow run {flow_run.name} ({flow_run.id})")
        self.workers = workers
        self.tracker = tracker
        self.page = page
        self.results: list[StageResult] = []

    def refresh_page(self, *, at_once: bool = False) -> None:
        """Show on the run's page what has been recorded, without waiting for it
        (``RunPage.refresh``)."""
        if self.page is not None:
            self.page.refresh(at_once=at_once)

    def end_page(self) -> dict[str, Any]:
        """Show that the run has completed; return what its page cost (``RunPage.figures``)."""
        if self.page is None:
            return {}
        self.page.end(Ending("completed"))
        return self.page.figures()

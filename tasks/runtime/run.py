"""Opens and closes a pipeline run: resolved recipe, run folder, store, workers, tracker."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from rlcore.envs.registry import environment_names
from rlcore.models.stop_tokens import NEVER_CLOSES
from rlcore.plan.preconditions import StartCheck, check_start
from rlcore.recipes.load import load_recipe
from rlcore.recipes.redaction import redacting
from rlcore.recipes.text import write_yaml
from rlcore.results.folders import LATEST, RECIPE, RUNS, run_directory
from rlcore.rl.workers import Workers
from rlcore.store.versions import modified_sentences
from schemas.errors import UserError
from schemas.recipe import Recipe
from schemas.stages import check_stages, stage_parents
from tasks.run_page.page import RunPage, View
from tasks.run_page.tracking import Tracker
from tasks.runtime.process import prepare_process
from tasks.runtime.pulse import pulse
from tasks.runtime.stage_run import PipelineRun

LONGEST_TAG = 80  # characters


def with_fields(overrides: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides with those keys that have a field in the run form; None: left empty.

    Raises UserError where both give a key, and not the same value.
    """
    merged = dict(overrides or {})
    for key, value in fields.items():
        if value is not None and merged.setdefault(key, value) != value:
            raise UserError(
                f"{key} = {value!r} in the run form and {merged[key]!r} in overrides are the same"
                " key of the recipe; leave one of the two out"
            )
    return merged


@contextmanager
def open_run(
    recipe_name: str,
    overrides: Mapping[str, Any],
    *,
    recipes: Path,
    accept_code: bool = False,
    refresh: Sequence[str] = (),
    until: str | None = None,
) -> Iterator[PipelineRun]:
    """Yield the run of the flow under way; its workers end with the context.

    ``recipe_name``: that of a file in the directory ``recipes``, or the path of a YAML file.
    ``accept_code``, ``refresh``: see ``PipelineRun``. ``until``: the stage that ends the run.

    A retried flow run keeps its folder and the recipe recorded there, so it means what it meant.
    No log line of this process and no error that leaves the context holds a secret.
    Raises UserError when the recipe is wrong or lacks a stage of ``refresh`` or ``until``, or
    ``check_start`` refuses it.
    """
    prepare_process()
    log = get_run_logger()
    with redacting():
        directory = run_directory(recipe_name, str(flow_run.id))
        if (directory / RECIPE).is_file():
            recipe = load_recipe(str(directory / RECIPE), directory=recipes)
        else:
            recipe = load_recipe(recipe_name, overrides, directory=recipes)
        _tag(overrides)
        check_stages(recipe, refresh, until)
        start = check_start(recipe)
        _record(recipe, directory)
        _tell_start(recipe, directory, start)
        tracking = Tracker.open(
            recipe, directory, run_id=str(flow_run.id), name=directory.name, warn=log.warning
        )
        view = View(directory, recipe, UUID(str(flow_run.id)))
        with (
            RunPage.open(view, log.warning) as page,
            pulse(log.info),
            Workers(recipe, warn=log.warning, log=log.info) as workers,
            tracking as tracker,
        ):
            yield PipelineRun(
                recipe,
                directory,
                workers=workers,
                tracker=tracker,
                page=page,
                overrides=overrides,
                accept_code=accept_code,
                refresh=refresh,
            )


def _tell_start(recipe: Recipe, directory: Path, start: StartCheck) -> None:
    """Log what begins, and what may be wrong with it."""
    log = get_run_logger()
    log.info(f"recipe {recipe.name}, seed {recipe.seed}, run folder {directory}")
    modified = modified_sentences([*stage_parents(recipe), *environment_names(recipe)])
    for sentence in (*modified, *start.doubts):
        log.warning(sentence)
    if start.stops is not None and start.stops.closing is None:
        log.warning(NEVER_CLOSES)
    if start.sandbox is not None:
        log.info(f"reward code runs programs at sandbox level {start.sandbox}")


def _tag(overrides: Mapping[str, Any]) -> None:
    """Show on the run's page, and in the list of runs, what it was asked for beyond its recipe."""
    if overrides:
        tags = [f"{key}={json.dumps(value)}"[:LONGEST_TAG] for key, value in overrides.items()]
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(str(flow_run.id)), tags=[*flow_run.tags, *tags])


def _record(recipe: Recipe, directory: Path) -> None:
    """Write the resolved recipe and point ``runs/latest`` at the run; both atomically. Raises
    UserError where that is no link but a folder."""
    latest = RUNS / LATEST
    if latest.is_dir() and not latest.is_symlink():
        raise UserError(
            f"{latest} is a folder and not the link to the newest run (a copy that followed links"
            f" makes one of it); remove it, as its run is in {RUNS} under its own name, too"
        )
    directory.mkdir(parents=True, exist_ok=True)
    text = write_yaml(recipe.model_dump(mode="json"))
    partial = directory / f".{RECIPE}"
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, directory / RECIPE)
    link = RUNS / f".latest-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(directory.name)
    os.replace(link, latest)

"""Evolving as tasks: a round, an independent sample of every problem, and the scores at the end."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from rlcore.cluster.progress import activity
from rlcore.data.sources import data_digests, model_digests
from rlcore.envs.registry import environment_names
from rlcore.evolve.prompts import with_templates
from rlcore.evolve.rounds import Evolution
from rlcore.evolve.scores import figures, score_answers
from rlcore.evolve.session import Session, with_turns
from rlcore.models.base import with_file_names
from rlcore.models.files import MODEL_FOLDER
from rlcore.plan.preconditions import check_evolve
from rlcore.recipes.load import load_recipe, recipe_digest, sampling_code
from rlcore.recipes.redaction import redacting
from rlcore.report.text import code as as_code
from rlcore.report.text import plain
from rlcore.report.write import PageSection
from rlcore.results.folders import RUNS
from rlcore.results.named_artifacts import model_path
from rlcore.rewards.registry import code_digests
from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.versions import code_digest
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe
from tasks.evaluate_model import checked_model, with_model, with_origin
from tasks.run_page.page import show
from tasks.runtime.keys import stage_key
from tasks.runtime.process import prepare_process
from tasks.runtime.pulse import pulse

KIND = "evolution"  # the result: scores and figures


class Keys:
    """``played`` names the rounds, whatever their number; ``result`` their scores."""

    def __init__(self, recipe: Recipe, split: str, reads: Mapping[str, str]) -> None:
        users = code_digests(sampling_code(recipe))
        engine = recipe.hardware.rollout.engine
        own = [engine] if ":" in engine else []
        players = code_digests([*own, *environment_names(recipe)])
        self.reads = {**reads, **users, **players}
        self.code = code_digest("evolve")
        part = _slice(recipe, split)
        self.played = stage_key(
            "evolve", part, {}, code_digest("evolve_played"), {**reads, **players}
        )
        scored = recipe.slice_for("evaluate")
        more = {name: scored[name] for name in ("reward", "judges") if name in scored}
        section = recipe.evolve.model_dump(mode="json", include={"rounds", "scored_as"})
        self.result = stage_key(
            KIND, {**part, **more, "scored": section}, {}, self.code, self.reads
        )


@dataclass
class EvolveRun:
    """What the tasks of one flow run share. ``result``: the figures, where they are there."""

    recipe: Recipe
    store: ArtifactStore
    keys: Keys
    session: Session
    lineage: Lineage
    log: Callable[[str], None]
    result: ArtifactRef | None

    @cached_property
    def evolution(self) -> Evolution:
        """The rounds; the problems are read at the first use."""
        return Evolution(
            self.store,
            self.keys.played,
            self.lineage,
            self.session.problems,
            start=self.session.agents,
            log=self.log,
        )


@contextmanager
def open_evolve(
    model: str,
    recipe_name: str,
    overrides: Mapping[str, Any],
    *,
    recipes: Path,
    split: str,
    revision: str | None,
) -> Iterator[EvolveRun]:
    """Yield the run of the flow under way; its workers end with the context.

    ``model``: a directory, a hub name, or a run below ``runs``. Raises UserError, before anything
    starts, for a model, a recipe or a section that cannot be used.
    """
    prepare_process()
    recipe = load_recipe(recipe_name, overrides, directory=recipes)
    recipe = with_turns(with_model(recipe, model_path(model, RUNS), revision))
    recipe = recipe.model_copy(update={"evolve": with_templates(recipe.evolve)})
    check_evolve(recipe)
    log = get_run_logger().info
    source, stops = checked_model(recipe, "evolve", log)
    store = ArtifactStore(recipe.store, writer="rl-pipeline evolve")
    keys = Keys(recipe, split, {**model_digests(recipe.model), **data_digests(recipe.data)})
    with pulse(log), store.hold(keys.played), store.hold(keys.result):
        about = {"model": recipe.model.path, "split": split}
        lineage = Lineage(recipe_digest(recipe), keys.code, {}, str(flow_run.id or ""), about)
        lineage = with_origin(lineage, store, recipe, keys.played, keys.reads)
        with store.scratch() as scratch:
            source = with_file_names(recipe.model, source, scratch / MODEL_FOLDER)
            with Workers(recipe, warn=log, log=log) as workers:
                session = Session(recipe, source, stops.ids, split, workers, log)
                found = store.find_or_discard(KIND, keys.result, log)
                yield EvolveRun(recipe, store, keys, session, lineage, log, found)


@task(task_run_name="round-{number:03d}", cache_policy=NO_CACHE)
def evolve_round(run: EvolveRun, number: int) -> ArtifactRef:
    """Return round ``number`` of every problem; see ``Evolution.round``."""
    with redacting(), activity(f"round {number} of evolving"):
        return run.evolution.round(number)


@task(task_run_name="sample-{number:03d}", cache_policy=NO_CACHE)
def independent_sample(run: EvolveRun, number: int) -> ArtifactRef:
    """Return the ``number``-th independent sample of every problem; see ``Evolution.sample``."""
    with redacting(), activity(f"independent sample {number}"):
        return run.evolution.sample(number)


@task(task_run_name="scores", cache_policy=NO_CACHE)
def evolve_scores(run: EvolveRun) -> ArtifactRef:
    """Score all answers by the recipe's reward functions; return scores and figures."""
    recipe, evolution = run.recipe, run.evolution
    with redacting(), activity("scores of evolving"):
        scores = score_answers(
            evolution.rounds,
            evolution.samples,
            run.session.prompts,
            section=recipe.evolve,
            scorer=run.session.score,
            reward=recipe.reward,
        )
    tables = {"evolve_scores": scores, "eval_results": figures(scores, recipe.seed)}
    lineage = replace(run.lineage, parents={**run.lineage.parents, **evolution.parents})
    return run.store.put(KIND, run.keys.result, tables=tables, lineage=lineage)


def publish_figures(run: EvolveRun, results: pl.DataFrame) -> None:
    """Show the figures on the flow run's page."""
    rows = [
        f"| {plain(row['metric'])} | {plain(row['data_source'])} | {plain(row['subset'])}"
        f" | {row['value']:.3f} | {row['ci_low']:.3f} to {row['ci_high']:.3f}"
        f" | {row['num_prompts']} |"
        for row in results.iter_rows(named=True)
    ]
    head = [
        "| metric | source | subset | value | 95 % interval | problems |",
        "|---|---|---|---|---|---|",
    ]
    title = f"## Evolving of {as_code(run.recipe.model.path or '')}\n"
    said = "Accuracy per round, beside independent samples of the same policy."
    section = PageSection("evolve", said, "\n".join([title, *head, *rows]))
    show(UUID(str(flow_run.id)), run.recipe.name, [section])


def _slice(recipe: Recipe, split: str) -> dict[str, Any]:
    """Return what of the recipe a round depends on."""
    loaded = {"dtype", "max_tokens", "trust_remote_code", "chat_template"}
    loaded |= {"stop_tokens"} if recipe.model.stop_tokens else set()
    part = recipe.model_dump(mode="json", include={"seed": True, "data": True, "model": loaded})
    environment = None if recipe.environment is None else recipe.environment.identity
    own = {"evolve": recipe.evolve.identity, "environment": environment, "split": split}
    return {**part, **own}

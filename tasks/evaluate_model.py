"""Any model on the data of a recipe, evaluated as the stage ``evaluate`` does and kept in the store
under a key of the same making. No run, and no Prefect: a question is asked of a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.cluster.progress import activity
from rlcore.data.prepare import prepare
from rlcore.data.sources import data_digests, model_digests
from rlcore.engines.pool import load_model_directory
from rlcore.envs.registry import environment_names
from rlcore.evaluation.evaluate import evaluate
from rlcore.evaluation.win_rate import with_win_rates
from rlcore.models.base import check_base_model, with_file_names
from rlcore.models.files import MODEL_FOLDER, locate_model, model_directory
from rlcore.models.stop_tokens import Stops
from rlcore.models.tokenizer import load_tokenizer, model_tokenizer
from rlcore.recipes.load import recipe_digest, sampling_code
from rlcore.results.provenance import CODE, RECIPE, record_code, record_inputs, record_recipe
from rlcore.rewards.registry import code_digests
from rlcore.rewards.truths import check_covered
from rlcore.rl.workers import Workers
from rlcore.rollout.episodes import episodes_of
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.versions import code_digest, modified_sentences
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.names import BASE_MODEL, REWARD_MODEL
from schemas.recipe import Recipe
from tasks.runtime.keys import stage_key

KIND = "evaluation"
STAGE = "evaluate_model"  # in the key: apart from the stage, whose results are of a run's models
CHECKPOINT = "model"  # the column in the tables


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The artifact ``ref`` with its tables ``eval_results`` and ``completions``."""

    ref: ArtifactRef
    results: pl.DataFrame
    completions: pl.DataFrame


def with_model(recipe: Recipe, path: str, revision: str | None = None) -> Recipe:
    """Return ``recipe`` with the model ``path``, a directory or a hub name, in place of the one it
    has.

    Its chat template stays: it says how a prompt is written.
    """
    directory = Path(path).expanduser()
    path = str(directory.absolute()) if directory.is_dir() else path
    origin = {"path": path, "revision": revision, "from_scratch": None}
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=origin)})


def checked_model(recipe: Recipe, code: str, log: Callable[[str], None]) -> tuple[Path, Stops]:
    """Return the directory of ``recipe.model`` and what ends its turns; log both, and where the
    code called ``code`` was modified. Raises UserError for a model that cannot be used."""
    model = recipe.model
    source = locate_model(
        model.path or "", model.revision, trust_remote_code=model.trust_remote_code
    )
    stops = check_base_model(model, source)
    for line in (*stops.lines(), *modified_sentences([code, *environment_names(recipe)])):
        log(line)
    return source, stops


def with_origin(
    lineage: Lineage, store: ArtifactStore, recipe: Recipe, key: str, reads: Mapping[str, str]
) -> Lineage:
    """Return ``lineage`` with records of the recipe, the code and what was read as parents."""
    plain = replace(lineage, parents={}, metadata={})
    made_by = {
        RECIPE: record_recipe(store, recipe, plain),
        CODE: record_code(store, plain),
        **record_inputs(store, key, reads, plain),
    }
    return replace(lineage, parents={**lineage.parents, **made_by})


def evaluate_model(
    recipe: Recipe,
    *,
    split: str = "test",
    reward_model: ArtifactRef | None = None,
    log: Callable[[str], None],
) -> Evaluated:
    """Return the evaluation of ``recipe.model`` on ``split`` of ``recipe.data``, made unless the
    store has it.

    The prompts are written and counted in the model's own tokens. ``reward_model``: the artifact
    that scores where ``reward.functions`` names one. Raises UserError for a model that does not fit
    the data, and as ``prepare`` and ``evaluate`` do.
    """
    source, stops = checked_model(recipe, "evaluate_model", log)
    store = ArtifactStore(recipe.store, writer="rl-pipeline evaluate")
    reads = {**model_digests(recipe.model), **data_digests(recipe.data)}
    users = code_digests([*sampling_code(recipe), *environment_names(recipe)])
    code = code_digest("evaluate_model", users)
    parents = {} if reward_model is None else {REWARD_MODEL: reward_model}
    key = stage_key(STAGE, _slice(recipe, split), parents, code, {**reads, **users})
    ref = store.find_or_discard(KIND, key, log)
    if ref is None:
        with store.hold(key), store.scratch() as scratch:
            source = with_file_names(recipe.model, source, scratch / MODEL_FOLDER)
            tables = _tables(recipe, source, stops, split, store, reward_model, log)
            about = {"model": recipe.model.path, "split": split}
            lineage = Lineage(recipe_digest(recipe), code, parents, metadata=about)
            lineage = with_origin(lineage, store, recipe, key, {**reads, **users})
            ref = store.put(KIND, key, tables=tables, lineage=lineage)
    return Evaluated(ref, store.table(ref, "eval_results"), store.table(ref, "completions"))


def _slice(recipe: Recipe, split: str) -> Mapping[str, Any]:
    """Return what of the recipe counts: all of the stage's slice but which checkpoints of a run."""
    part = recipe.slice_for("evaluate")
    del part["evaluate"]["checkpoints"]
    data = recipe.model_dump(mode="json", include={"data"})
    return {**part, **data, "split": split, BASE_MODEL: recipe.slice_for(BASE_MODEL)}


def _tables(
    recipe: Recipe,
    source: Path,
    stops: Stops,
    split: str,
    store: ArtifactStore,
    reward_model: ArtifactRef | None,
    log: Callable[[str], None],
) -> dict[str, pl.DataFrame]:
    """Sample from the model of the directory ``source``; return figures and completions."""
    tokenizer = model_tokenizer(recipe.model, source)
    scorer = None if reward_model is None else model_directory(store.directory(reward_model))
    if scorer is not None and load_tokenizer(scorer).get_vocab() != tokenizer.get_vocab():
        raise UserError(
            f"model '{recipe.model.path}' has another tokenizer than the reward model"
            f" {scorer}, which scores tokens; set reward.functions to functions that read text"
        )
    prepared = prepare(
        recipe.data,
        tokenizer=tokenizer,
        seed=recipe.seed,
        sft_max_tokens=None,
        environment=recipe.environment,
    )
    log(prepared.sentence())
    prompts = prepared.tables["prompts"]
    check_covered(prompts, recipe.reward.functions)
    with Workers(recipe, warn=log, log=log) as workers:
        engines = workers.engines(source)
        rewards = workers.rewards(source, scorer)
        load_model_directory(engines, source)
        with activity(f"evaluation of {recipe.model.path}"):
            results, completions = evaluate(
                prompts,
                checkpoint=CHECKPOINT,
                section=recipe.evaluate,
                seed=recipe.seed,
                engines=engines,
                tokenizer=tokenizer,
                stop_ids=stops.ids,
                scorer=rewards.score,
                reward=recipe.reward,
                split=split,
                episodes=episodes_of(recipe, engines, workers.environments(), tokenizer),
            )
    return with_win_rates({"eval_results": results, "completions": completions}, recipe, log=log)

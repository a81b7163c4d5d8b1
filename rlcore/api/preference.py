"""DPO and KTO in this process: preferences and a config in, a model and its curves out.

The stage ``preference`` of the pipeline, its learner built inline. With an ``output_dir`` the same
call continues at its newest checkpoint: its key is a digest of all that decides the result.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlcore.api.call import TRAINING
from rlcore.api.configs import ApiConfig
from rlcore.api.recipe import in_process
from rlcore.api.session import POLICY, Trained, base_model, only_run, publish
from rlcore.models.base import load_pretrained
from rlcore.models.files import (
    MODEL_FOLDER,
    context_of,
    locate_model,
    model_files,
    read_config,
)
from rlcore.models.soundness import check_tokenizer_fits
from rlcore.models.stop_tokens import record_stops, stops_of
from rlcore.models.tokenizer import load_tokenizer
from rlcore.plan.machine import check_machine
from rlcore.recipes.load import recipe_digest, resolve_recipe
from rlcore.recipes.text import write_yaml
from rlcore.results.folders import RECIPE
from rlcore.results.metrics import stage_metrics
from rlcore.rl.workers import Workers
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.checks import file_digest
from rlcore.store.versions import code_digest
from rlcore.supervised.loop import Progress, SupervisedTraining
from rlcore.supervised.preference import (
    PreferenceBatches,
    check_start,
    prepare,
    reference_table,
    unbalanced,
)
from rlcore.supervised.preference_files import OF_PREFERENCE, encode_file
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.names import PREFERENCE
from schemas.preference import PreferenceSection
from schemas.recipe import Recipe
from schemas.section import setting

logger = logging.getLogger(__name__)

ROWS = "preferences.jsonl"  # in the output_dir of a call


class PreferenceConfig(ApiConfig):
    """What DPO and KTO take; lengths in tokens. The reference is the model as it is given."""

    algorithm: ClassVar[str]

    beta: float = setting(0.1, "how closely the reference is followed", gt=0)
    epochs: int = Field(default=1, ge=1)
    batch_size: int = setting(64, "pairs, or for KTO responses, per step", ge=1)
    learning_rate: float = Field(default=1e-6, gt=0)
    max_length: int = setting(1024, "prompt and response; cut behind it", ge=8)
    checkpoint_every: int = setting(200, "steps", ge=1)


class DPOConfig(PreferenceConfig):
    """Direct preference optimization (arXiv 2305.18290), or IPO (arXiv 2310.12036)."""

    algorithm = "dpo"
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    rpo_alpha: float = setting(0.0, "weight of the better one's NLL", ge=0)


class KTOConfig(PreferenceConfig):
    """Single responses, desirable or not (arXiv 2402.01306)."""

    algorithm = "kto"
    desirable_weight: float = Field(default=1.0, gt=0)
    undesirable_weight: float = Field(default=1.0, gt=0)


def train_preferences(
    model_name: str,
    preferences: Sequence[Mapping[str, Any]],
    config: PreferenceConfig,
    output_dir: str | None,
    check: Callable[[], None],
) -> Trained:
    """Train ``model_name`` on ``preferences``; return (model, tokenizer, curves by TRL's names).

    ``output_dir`` keeps rows, recipe, model and checkpoints. ``check``, called after each step,
    ends the run by an exception. Raises UserError for what cannot work or does not fit this machine
    and for the ``output_dir`` of another call, and LeaseError while another process trains into it.
    """
    lines = _lines(preferences)
    folder = None if output_dir is None else Path(output_dir)
    with only_run(config.algorithm, folder) as (root, store, scratch):
        located = locate_model(model_name, None)
        source = base_model(model_name, located, scratch)
        recipe = _recipe(config, source, root / ROWS, store)
        check_machine(recipe)
        key = _key(recipe, located, lines)
        _require_same_call(store, key, root)
        (root / ROWS).write_text(lines, encoding="utf-8")
        (root / RECIPE).write_text(write_yaml(recipe.model_dump(mode="json")), encoding="utf-8")
        ended = store.find_or_discard(POLICY, key, logger.warning)
        policy = ended or _trained(recipe, store, key, source, check, name=model_name)
        if ended is None or not (root / MODEL_FOLDER).exists():  # it may be its user's by now
            publish(store.directory(policy), root)
        model, tokenizer = load_pretrained(store.directory(policy) / MODEL_FOLDER)
        table = stage_metrics(store, key).sort("step")
        metrics = table.group_by("name", maintain_order=True).agg("value").iter_rows()
        return Trained(model, tokenizer, dict(metrics))


def _lines(preferences: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as JSON lines. Raises UserError naming the first that cannot be written."""
    if not len(preferences) or isinstance(preferences, str):
        raise UserError(
            f"preferences = {preferences!r:.60} holds no rows; give a list of dicts with prompt,"
            " chosen and rejected, or with prompt, completion and label"
        )
    lines = []
    for number, row in enumerate(preferences):
        try:
            lines.append(json.dumps(dict(row)) + "\n")
        except (TypeError, ValueError) as error:
            raise UserError(
                f"preferences[{number}] = {row!r:.60} is no row of texts, messages and numbers"
                f" ({error}); give a dict of those"
            ) from error
    return "".join(lines)


def _require_same_call(store: ArtifactStore, key: str, root: Path) -> None:
    """Raise UserError where ``root`` holds what another call has made."""
    kinds = (POLICY, "checkpoint")
    others = [made for kind in kinds for made in store.keys(kind, f"{TRAINING}/")]
    if any(not f"{made}/".startswith(f"{key}/") for made in others):
        raise UserError(
            f"output_dir = '{root}' holds a call with other arguments, or that other code of this"
            " program began, which this one cannot continue; give the arguments as they were, or"
            " another output_dir"
        )


def _length(config: PreferenceConfig, source: Path) -> int:
    """Return the tokens of a row, a default as the context allows. Raises UserError for another."""
    context = context_of(read_config(source)) or config.max_length
    if config.max_length > context and "max_length" in config.model_fields_set:
        raise UserError(
            f"{type(config).__name__}.max_length = {config.max_length} exceeds the model's context,"
            f" {context} tokens; lower it to {context}"
        )
    return min(config.max_length, context)


def _recipe(config: PreferenceConfig, source: Path, rows: Path, store: ArtifactStore) -> Recipe:
    name, length = f"train-with-{config.algorithm}", _length(config, source)
    tree = in_process(
        config, name, model=source, store=store.root, rows=str(rows), max_tokens=length
    )
    tree |= {
        "preference": {
            "algorithm": config.algorithm,
            "data": {"kind": "file", "path": str(rows)},
            "max_tokens": length,
            "optimizer": {"lr": config.learning_rate},
            **config.model_dump(include=set(PreferenceSection.model_fields)),
        },
        # Required of a recipe, and read by no stage of this call: data, rl, reward, evaluate.
        "data": {**tree["data"], "max_prompt_tokens": 1},
        "rl": {
            "enabled": False,
            "preset": "grpo",
            "iterations": 1,
            "rollout": {"max_new_tokens": 1},
        },
        "reward": {"functions": [{"name": "math"}]},
        "evaluate": {"checkpoints": [PREFERENCE], "max_new_tokens": 1},
        "tracking": {"wandb": False},
    }
    return resolve_recipe(name, tree, config.overrides)


def _key(recipe: Recipe, model: Path, rows: str) -> str:
    """Return what names this call's results: files of the model, rows, settings and code."""
    assert recipe.preference is not None, "the recipe has the section"
    settings = recipe.preference.model_dump(mode="json", exclude={"data": {"path"}})
    decides = [
        {file.name: file_digest(file.resolve()) for file in model_files(model)},
        rows,
        settings,
        [recipe.seed, recipe.model.dtype, recipe.model.adapter and str(recipe.model.adapter)],
        code_digest("preference"),
    ]
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    return f"{TRAINING}/{recipe.preference.algorithm}-{digest[:16]}"


def _trained(
    recipe: Recipe,
    store: ArtifactStore,
    key: str,
    source: Path,
    check: Callable[[], None],
    *,
    name: str,
) -> ArtifactRef:
    section = recipe.preference
    assert section is not None, "the recipe has the section"
    tokenizer = load_tokenizer(source, name=name)
    check_tokenizer_fits(tokenizer, source, read_config(source), name=name)
    labels = section.algorithm == "kto"
    encoded = encode_file(section.data, recipe.data, tokenizer, OF_PREFERENCE, labels=labels)
    table = prepare(encoded, section).table
    if said := unbalanced(table, section):
        logger.warning(said)
    lineage = Lineage(recipe_digest(recipe), code_digest("preference"), producer=key)
    with Workers(recipe, warn=logger.warning) as workers, store.scratch() as exported:
        learner = workers.learner(source, section.optimizer, name="learner", stage=PREFERENCE)
        batches = PreferenceBatches(
            section,
            table,
            # Of the weights as they are given: a checkpoint is loaded afterwards.
            reference_table(learner, table, section),
            learner=learner,
            seed=recipe.seed,
        )
        training = SupervisedTraining(
            batches, section, learner=learner, store=store, key=key, lineage=lineage
        )

        def on_step(progress: Progress) -> None:
            if progress.step == 1:
                check_start(progress.metrics, recipe.model.dtype)
            loss = progress.metrics[f"{PREFERENCE}/loss"]
            logger.info("step %d/%d  loss %.4f", progress.step, progress.total, loss)
            check()

        training.run(on_step, log=logger.warning)
        training.publish(batches.validation())
        learner.export_hf(exported / MODEL_FOLDER)
        stops = stops_of(source, tokenizer, recipe.model.stop_tokens)
        record_stops(exported / MODEL_FOLDER, stops)
        made = store.put(POLICY, key, directory=exported, lineage=lineage)
        training.discard_checkpoints()
        return made

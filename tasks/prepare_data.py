"""Stage 2: sources become prompts, demonstrations and rejects, in the base model's tokens."""

import polars as pl
from prefect.logging import get_run_logger

from rlcore.data.prepare import prepare_files
from rlcore.data.sources import check_unchanged
from rlcore.models.files import model_directory
from rlcore.models.tokenizer import model_tokenizer
from rlcore.plan.data_size import check_preferences
from rlcore.plan.preconditions import check_classifiers
from rlcore.plan.rehearsal import at_hand, check_dataset
from rlcore.rewards.truths import check_covered
from schemas.artifacts import ArtifactRef
from schemas.names import BASE_MODEL
from schemas.stages import Stage
from tasks.runtime.caching import StageRun, cached_stage
from tasks.runtime.stage_run import PipelineRun


@cached_stage(Stage.PREPARE_DATA)
def prepare_data(run: StageRun) -> ArtifactRef:
    """Read, normalise, clean and split the sources; tokenise with the base model's tokenizer."""
    recipe = run.recipe
    tokenizer = model_tokenizer(recipe.model, run.model(BASE_MODEL))
    with run.store.scratch() as folder:
        prepared = prepare_files(recipe, tokenizer, folder, run.kind)
        check_unchanged(recipe.data, run.keys.reads)
        get_run_logger().info(prepared.sentence())
        return run.put(tables=prepared.tables, metadata={"counts": prepared.summary})


def check_prepared(run: PipelineRun, dataset: ArtifactRef, base_model: ArtifactRef) -> None:
    """Raise UserError where the run's reward functions leave prompts of the dataset unscored,
    cannot read their ground truths, or fail on some rows, where a reward model of the hub cannot
    score, and where preferences of the hub or in this template leave nothing to compare: what
    ``check_start`` had not at hand.

    Not in the stage: the dataset, new or from cache, is the same for every reward.
    """
    recipe, functions = run.recipe, run.recipe.reward.functions
    if recipe.reward_model is not None or recipe.preference is not None:
        directory = model_directory(run.store.directory(base_model))
        check_preferences(recipe, model_tokenizer(recipe.model, directory))
    check_classifiers(recipe, recipe.rl.rollout.max_new_tokens, fetch=True)
    if any(function.data_sources or function.styles for function in functions):
        check_covered(pl.scan_parquet(run.store.table_file(dataset, "prompts")), functions)
    if at_hand(recipe) is None:
        names = ("prompts", "demonstrations")
        tables = [pl.scan_parquet(run.store.table_file(dataset, name)) for name in names]
        for sentence in check_dataset(recipe, *tables):
            get_run_logger().warning(sentence)

"""Stage 5: a reward model on ranked responses, for recipes that name one."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
from prefect.logging import get_run_logger

from rlcore.models.classifier import base_directory
from rlcore.models.files import MODEL_FOLDER, model_directory
from rlcore.models.packing import Sequences
from rlcore.models.tokenizer import load_tokenizer
from rlcore.supervised.loop import SupervisedTraining
from rlcore.supervised.preference_files import read_preferences
from rlcore.supervised.preferences import (
    check_pairs,
    contaminated,
    encode,
    fit,
    preference_sequences,
)
from rlcore.supervised.reward_model import (
    PreferenceBatches,
    evaluate_scores,
    last_token_scores,
    shift_bias,
    zero_sequences,
)
from schemas.artifacts import ArtifactRef
from schemas.names import REWARD_MODEL
from schemas.recipe import Recipe
from schemas.reward_model import (
    FilePreferences,
    Gsm8kSolutions,
    RewardModelSection,
    SampledPreferences,
)
from schemas.stages import Stage
from tasks.run_page.report import TrainingReport
from tasks.runtime.caching import StageRun, cached_stage
from tasks.runtime.sampled_preferences import sampled_preferences
from tasks.runtime.stage_run import sampling

PREFERENCES = "preferences"


@cached_stage(Stage.REWARD_MODEL)
def reward_model(run: StageRun) -> ArtifactRef:
    """Rank responses, train a scalar head on the policy of ``run.parents``, judge it on held-out
    prompts; the result is a classifier directory with those figures."""
    section, store, log = _section(run.recipe), run.store, get_run_logger()
    policy = model_directory(store.directory(run.parents["policy"]))
    ranked = _preferences(run, policy)
    preferences = store.table(ranked, PREFERENCES)
    lineage = replace(run.lineage(), parents={**run.parents, PREFERENCES: ranked})
    learner = run.workers.learner(
        base_directory(section, policy),
        section.optimizer,
        name="reward-model-learner",
        stage=Stage.REWARD_MODEL,
        head="value",
    )
    training = SupervisedTraining(
        PreferenceBatches(section, preferences, run.recipe.seed),
        section,
        learner=learner,
        store=store,
        key=run.key,
        lineage=lineage,
    )
    training.run(TrainingReport(REWARD_MODEL, run.tracker), log=log.warning)
    shift = -float(last_token_scores(learner, _zeros(run, preferences)).mean())
    held_out = preferences.filter(preferences["split"] == "validation")
    scores = last_token_scores(learner, preference_sequences(held_out)) + shift
    evaluation = evaluate_scores(held_out, scores, run.recipe.seed)
    training.publish(evaluation.metrics)
    for line in evaluation.lines():
        log.info(line)
    with store.scratch() as scratch:
        learner.export_hf(scratch / MODEL_FOLDER)
        run.workers.release(learner)
        shift_bias(scratch / MODEL_FOLDER, shift)
        metadata = {"calibration_error": evaluation.calibration_error, "bias_shift": shift}
        ref = store.put(
            REWARD_MODEL,
            run.key,
            tables=evaluation.tables,
            directory=scratch,
            lineage=replace(lineage, metadata={**metadata, "steps": training.total_steps}),
        )
    training.discard_checkpoints()
    return ref


def _preferences(run: StageRun, policy: Path) -> ArtifactRef:
    """Return the ranked responses, a separate artifact: sampled once, whatever then fails."""
    found = run.store.find_or_discard(PREFERENCES, run.key, get_run_logger().warning)
    if found is not None:
        return found
    section, source = _section(run.recipe), _section(run.recipe).preferences
    match source:
        case SampledPreferences():
            run = sampling(run, policy, kind=PREFERENCES)
            ranked = sampled_preferences(run, source, policy)
        case Gsm8kSolutions() | FilePreferences():
            found = read_preferences(source, run.recipe.data)
            ranked = encode(found.rows, load_tokenizer(policy))
            ranked = replace(ranked, left_out=found.left_out | ranked.left_out)
    ranked = fit(ranked, section.max_tokens)
    check_pairs(ranked.table)
    counts, prompts = ranked.counts, run.store.table(run.parents["dataset"], "prompts")
    get_run_logger().info(f"preferences {json.dumps(counts)}")
    if said := contaminated(ranked.table, prompts, "what this reward model leads to"):
        get_run_logger().warning(said)
    return run.store.put(
        PREFERENCES,
        run.key,
        tables={PREFERENCES: ranked.table},
        lineage=run.lineage({"counts": counts}),
    )


def _zeros(run: StageRun, preferences: pl.DataFrame) -> Sequences:
    demonstrations = run.store.table(run.parents["dataset"], "demonstrations")
    count = _section(run.recipe).zero_demonstrations
    return zero_sequences(demonstrations, preferences, count, run.recipe.seed)


def _section(recipe: Recipe) -> RewardModelSection:
    assert recipe.reward_model is not None, "the flow runs this stage where the recipe asks for it"
    return recipe.reward_model

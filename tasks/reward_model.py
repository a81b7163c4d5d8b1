"""Stage 5: a reward model on ranked responses, for recipes that name one."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from prefect.logging import get_run_logger

from rlcore.cluster.progress import activity
from rlcore.engines.pool import load_model_directory
from rlcore.models.classifier import base_directory
from rlcore.models.files import MODEL_FOLDER
from rlcore.models.stop_tokens import stops_of
from rlcore.models.tokenizer import load_tokenizer
from rlcore.rewards.pairs import Comparison, Pair, compare
from rlcore.rollout.trajectories import Trajectory
from rlcore.supervised.loop import SupervisedTraining
from rlcore.supervised.preference_files import encode_file
from rlcore.supervised.preferences import (
    check_pairs,
    contaminated,
    fit,
    preference_sequences,
    sample_preferences,
)
from rlcore.supervised.ranking import Ranking, by_judge, by_score, by_verdict
from rlcore.supervised.reward_model import (
    PreferenceBatches,
    evaluate_scores,
    last_token_scores,
    shift_bias,
    zero_sequences,
)
from schemas.artifacts import ArtifactRef
from schemas.names import REWARD_MODEL, is_model, ranking_term
from schemas.reward_model import (
    VERIFIER,
    FilePreferences,
    Gsm8kSolutions,
    RewardModelSection,
    SampledPreferences,
)
from schemas.stages import Stage
from tasks.run_page.report import training_report
from tasks.runtime.caching import StageRun, cached_stage
from tasks.runtime.stage_run import sampling

PREFERENCES = "preferences"


@cached_stage(Stage.REWARD_MODEL)
def reward_model(run: StageRun) -> ArtifactRef:
    """Rank responses, train a scalar head on the policy of ``run.parents``, judge it on held-out
    prompts; the result is a classifier directory with those figures."""
    section, store, log = run.recipe.reward_model, run.store, get_run_logger()
    assert section is not None, "the flow runs this stage where the recipe asks for it"
    policy = run.model("policy")
    ranked = _preferences(run, section, policy)
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
    training.run(training_report(REWARD_MODEL, run.tracker), log=log.warning)
    zeros = zero_sequences(
        store.table(run.parents["dataset"], "demonstrations"),
        preferences,
        section.zero_demonstrations,
        run.recipe.seed,
    )
    shift = -float(last_token_scores(learner, zeros).mean())
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


def _preferences(run: StageRun, section: RewardModelSection, policy: Path) -> ArtifactRef:
    """Return the ranked responses, a separate artifact: sampled once, whatever then fails."""
    found = run.store.find_or_discard(PREFERENCES, run.key, get_run_logger().warning)
    if found is not None:
        return found
    tokenizer = load_tokenizer(policy)
    prompts = run.store.table(run.parents["dataset"], "prompts")
    match source := section.preferences:
        case SampledPreferences():
            run = sampling(run, policy, kind=PREFERENCES)
            engines = run.workers.engines(policy)
            load_model_directory(engines, policy)
            ranked = sample_preferences(
                source,
                prompts,
                seed=run.recipe.seed,
                engines=engines,
                tokenizer=tokenizer,
                stop_ids=stops_of(policy, tokenizer).ids,
                rank=partial(_rank, run, source, policy),
            )
        case Gsm8kSolutions() | FilePreferences():
            ranked = encode_file(source, run.recipe.data, tokenizer)
    ranked = fit(ranked, section.max_tokens)
    check_pairs(ranked.table)
    get_run_logger().info(f"preferences {json.dumps(ranked.counts)}")
    if said := contaminated(ranked.table, prompts, "what this reward model leads to"):
        get_run_logger().warning(said)
    return run.store.put(
        PREFERENCES,
        run.key,
        tables={PREFERENCES: ranked.table},
        lineage=run.lineage({"counts": ranked.counts}),
    )


def _rank(
    run: StageRun,
    section: SampledPreferences,
    policy: Path,
    trajectories: Sequence[Trajectory],
) -> Ranking:
    recipe, by = run.recipe, section.ranked_by
    judge = section.judge
    if judge is not None and recipe.judges[judge].is_pairwise:

        def compared(pairs: Sequence[Pair]) -> list[Comparison]:
            with activity(f"ranking by judge {judge}"):
                log = get_run_logger().info
                return compare(recipe, judge, pairs, rows="comparisons of responses", log=log)

        return by_judge(trajectories, judge, compared)
    scorer = run.workers.rule_rewards(brought_for=policy if is_model(by) else None).score
    if by == VERIFIER:
        return by_verdict(trajectories, scorer, recipe.reward)
    return by_score(trajectories, scorer, recipe.reward, ranking_term(by))

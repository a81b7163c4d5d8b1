"""Stage 4: DPO or KTO on preferences, for recipes that have the section."""

import json
from dataclasses import replace
from pathlib import Path

from prefect.logging import get_run_logger

from rlcore.learner.pool import LearnerPool
from rlcore.models.files import MODEL_FOLDER
from rlcore.models.tokenizer import load_tokenizer
from rlcore.supervised.loop import Progress, SupervisedTraining
from rlcore.supervised.preference import (
    REFERENCE,
    PreferenceBatches,
    check_start,
    prepare,
    reference_table,
    unbalanced,
)
from rlcore.supervised.preference_files import OF_PREFERENCE, encode_file
from rlcore.supervised.preferences import contaminated
from schemas.artifacts import ArtifactRef
from schemas.names import PREFERENCE
from schemas.preference import PreferenceSection
from schemas.stages import Stage
from tasks.run_page.report import training_report
from tasks.runtime.caching import StageRun, cached_stage

PREFERENCES = "preferences"  # kind of the rows' artifact, and its table


@cached_stage(Stage.PREFERENCE)
def preference(run: StageRun) -> ArtifactRef:
    """Train the policy of ``run.parents`` on preferences, with itself as the reference."""
    section, store, log = run.recipe.preference, run.store, get_run_logger()
    assert section is not None, "the flow runs this stage where the recipe asks for it"
    policy = run.model("policy")
    learner = run.workers.learner(
        policy, section.optimizer, name="preference-learner", stage=Stage.PREFERENCE
    )
    rows = _rows(run, section, policy, learner)
    batches = PreferenceBatches(
        section,
        store.table(rows, PREFERENCES),
        store.table(rows, REFERENCE),
        learner=learner,
        seed=run.recipe.seed,
    )
    lineage = replace(run.lineage(), parents={**run.parents, PREFERENCES: rows})
    training = SupervisedTraining(
        batches, section, learner=learner, store=store, key=run.key, lineage=lineage
    )
    report = training_report(PREFERENCE, run.tracker)

    def on_step(progress: Progress) -> None:
        if progress.step == 1:
            check_start(progress.metrics, run.recipe.model.dtype)
        report(progress)

    with store.scratch() as scratch:
        training.run(on_step, log=log.warning)
        training.publish(batches.validation())
        learner.export_hf(scratch / MODEL_FOLDER)
        ref = run.put(
            directory=scratch,
            metadata={"steps": training.total_steps},
            parents={PREFERENCES: rows},
        )
    run.workers.release(learner)
    training.discard_checkpoints()
    return ref


def _rows(
    run: StageRun, section: PreferenceSection, policy: Path, learner: LearnerPool
) -> ArtifactRef:
    """Return the rows with the reference's log-probs, an artifact that outlives what then fails:
    ``learner`` is the reference only until it is trained."""
    found = run.store.find_or_discard(PREFERENCES, run.key, get_run_logger().warning)
    if found is not None:
        return found
    labels = section.algorithm == "kto"
    tokenizer = load_tokenizer(policy)
    encoded = encode_file(section.data, run.recipe.data, tokenizer, OF_PREFERENCE, labels=labels)
    ranked = prepare(encoded, section)
    get_run_logger().info(f"preferences {json.dumps(ranked.counts)}")
    prompts = run.store.table(run.parents["dataset"], "prompts")
    said = contaminated(ranked.table, prompts, "this policy"), unbalanced(ranked.table, section)
    for sentence in filter(None, said):
        get_run_logger().warning(sentence)
    return run.store.put(
        PREFERENCES,
        run.key,
        tables={
            PREFERENCES: ranked.table,
            REFERENCE: reference_table(learner, ranked.table, section),
        },
        lineage=run.lineage({"counts": ranked.counts}),
    )

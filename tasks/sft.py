"""Stage 3: SFT warm start. The base model learns the form of an answer from demonstrations."""

from prefect.logging import get_run_logger

from rlcore.models.files import MODEL_FOLDER
from rlcore.supervised.loop import SupervisedTraining
from rlcore.supervised.sft import STAGE, DemonstrationBatches
from schemas.artifacts import ArtifactRef
from schemas.names import BASE_MODEL
from schemas.stages import Stage
from tasks.run_page.report import training_report
from tasks.runtime.caching import StageRun, cached_stage


@cached_stage(Stage.SFT)
def sft(run: StageRun) -> ArtifactRef:
    """Train the base model on the dataset's demonstrations; the result is a policy."""
    section, store = run.recipe.sft, run.store
    learner = run.workers.learner(
        run.model(BASE_MODEL),
        section.optimizer,
        name="sft-learner",
        stage=Stage.SFT,
    )
    demonstrations = store.table(run.parents["dataset"], "demonstrations")
    batches = DemonstrationBatches(section, demonstrations, run.recipe.seed)
    training = SupervisedTraining(
        batches, section, learner=learner, store=store, key=run.key, lineage=run.lineage()
    )
    with store.scratch() as scratch:
        training.run(training_report(STAGE, run.tracker), log=get_run_logger().warning)
        training.publish(batches.validation(learner))
        learner.export_hf(scratch / MODEL_FOLDER)
        ref = run.put(directory=scratch, metadata={"steps": training.total_steps})
    run.workers.release(learner)
    training.discard_checkpoints()
    return ref

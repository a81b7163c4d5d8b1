"""Stage 8: a Hugging Face directory, reloaded and compared before it is published."""

from prefect.logging import get_run_logger

from rlcore.evaluation.card_facts import gather_card
from rlcore.evaluation.export import export_model
from rlcore.models.files import MODEL_FOLDER
from schemas.artifacts import ArtifactRef
from schemas.stages import Stage
from tasks.runtime.caching import StageRun, cached_stage


@cached_stage(Stage.EXPORT)
def export(run: StageRun) -> ArtifactRef:
    """Write the last policy with its model card; nothing is published unless it reloads equal."""
    with run.store.scratch() as scratch:
        report = export_model(
            run.model("policy"),
            scratch / MODEL_FOLDER,
            dtype=run.recipe.export.dtype,
            card=gather_card(run.recipe, run.store, run.parents, warn=get_run_logger().warning),
            trust_remote_code=run.recipe.model.trust_remote_code,
        )
        return run.put(directory=scratch, metadata=report)

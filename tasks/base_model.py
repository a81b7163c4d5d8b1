"""Stage 1: the model that training starts from, copied or made from random weights."""

from typing import Any

from prefect.logging import get_run_logger

from rlcore.data.read import training_texts
from rlcore.data.sources import model_digests
from rlcore.models.base import build_base_model, copy_base_model
from rlcore.models.files import MODEL_FOLDER, hub_commit, locate_model
from schemas.artifacts import ArtifactRef
from schemas.stages import Stage
from tasks.runtime.caching import StageRun, cached_stage


@cached_stage(Stage.BASE_MODEL)
def base_model(run: StageRun) -> ArtifactRef:
    """Copy the model that the recipe names, or train a tokenizer on the training rows and draw
    weights for it; the result is a Hugging Face directory and says where it came from."""
    model, log = run.recipe.model, get_run_logger().info
    with run.store.scratch() as scratch:
        target = scratch / MODEL_FOLDER
        origin: dict[str, Any] = {"seed": run.recipe.seed}
        if model.path is None:
            texts = training_texts(run.recipe.data, run.recipe.seed, run.recipe.environment)
            build_base_model(model, target, texts=texts, seed=run.recipe.seed, log=log)
        else:
            source = locate_model(
                model.path, model.revision, trust_remote_code=model.trust_remote_code
            )
            copy_base_model(model, source, target, log=log)
            origin = {"path": model.path, "commit": hub_commit(source), **model_digests(model)}
        return run.put(directory=scratch, metadata={"origin": origin})

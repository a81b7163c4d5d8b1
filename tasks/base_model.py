"""Stage 1: the model that training starts from, copied or made from random weights."""

from typing import Any

from rlcore.data.inputs import data_digests, model_digests
from rlcore.data.read import training_texts
from rlcore.envs.names import environment_names
from rlcore.models.base import build_base_model, copy_base_model
from rlcore.models.files import MODEL_FOLDER, hub_commit, locate_model
from rlcore.rewards.registry import code_digests
from rlcore.store.outside import Read
from schemas.artifacts import ArtifactRef
from schemas.names import BASE_MODEL
from schemas.recipe import Recipe
from tasks.runtime.caching import StageRun, cached_stage


def _read_outside(recipe: Recipe) -> dict[str, Read]:
    return data_digests(recipe.data) if recipe.model.path is None else model_digests(recipe.model)


@cached_stage(
    BASE_MODEL,
    kind=BASE_MODEL,
    inputs=_read_outside,
    user_code=lambda recipe: (
        code_digests(environment_names(recipe)) if recipe.model.path is None else {}
    ),
)
def base_model(run: StageRun) -> ArtifactRef:
    """Copy the model that the recipe names, or train a tokenizer on the training rows and draw
    weights for it; the result is a Hugging Face directory and says where it came from."""
    run.workers.start_learner_ahead()  # whatever follows a new base model is run
    model = run.recipe.model
    with run.store.scratch() as scratch:
        target = scratch / MODEL_FOLDER
        origin: dict[str, Any] = {"seed": run.recipe.seed}
        if model.path is None:
            texts = training_texts(run.recipe.data, run.recipe.seed, run.recipe.environment)
            build_base_model(model, target, texts=texts, seed=run.recipe.seed)
        else:
            source = locate_model(
                model.path, model.revision, trust_remote_code=model.trust_remote_code
            )
            copy_base_model(model, source, target)
            origin = {"path": model.path, "commit": hub_commit(source), **model_digests(model)}
        return run.put(directory=scratch, metadata={"origin": origin})

"""Stage 1: sources become prompts, demonstrations and rejects, with the base model they belong
to."""

import json

from prefect.logging import get_run_logger

from rlcore.data.inputs import input_digests
from rlcore.data.prepare import prepare
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from tasks.runtime.caching import StageRun, cached_stage


@cached_stage(
    "prepare_data",
    kind="dataset",
    inputs=lambda recipe: input_digests(recipe.data, recipe.model),
)
def prepare_data(run: StageRun) -> ArtifactRef:
    """Read, normalise, clean and split the sources; tokenise with the base model's tokenizer."""
    recipe = run.recipe
    run.workers.start_learner_ahead()  # no stage after a new dataset comes from cache
    with run.store.scratch() as scratch:
        prepared = prepare(
            data=recipe.data,
            model=recipe.model,
            seed=recipe.seed,
            workdir=scratch,
            sft_max_tokens=recipe.sft.max_tokens if recipe.sft.enabled else None,
        )
        if "validation" not in prepared.tables["prompts"]["split"]:
            raise UserError(
                "data: no validation prompts, which alone may choose a checkpoint; set"
                " data.validation_fraction, e.g. to 0.05, or add a source with split: validation"
            )
        get_run_logger().info(f"prepared {json.dumps(prepared.summary)}")
        return run.put(
            tables=prepared.tables, directory=scratch, metadata={"counts": prepared.summary}
        )

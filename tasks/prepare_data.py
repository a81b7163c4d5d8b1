"""Stage 1: sources become prompts, demonstrations and rejects, with the base model they belong
to."""

import json
import tempfile
from pathlib import Path

from prefect.logging import get_run_logger

from rlcore.data.inputs import input_digests
from rlcore.data.prepare import prepare
from schemas.artifacts import ArtifactRef
from tasks.caching import StageRun, cached_stage


@cached_stage(
    "prepare_data",
    kind="dataset",
    inputs=lambda recipe: input_digests(recipe.data, recipe.model),
)
def prepare_data(run: StageRun) -> ArtifactRef:
    """Read, normalise, clean and split the sources; tokenise with the base model's tokenizer."""
    recipe = run.recipe
    with tempfile.TemporaryDirectory(prefix="rl-dataset-") as scratch:
        prepared = prepare(
            data=recipe.data,
            model=recipe.model,
            seed=recipe.seed,
            workdir=Path(scratch),
            sft_max_tokens=recipe.sft.max_tokens if recipe.sft.enabled else None,
        )
        get_run_logger().info(f"prepared {json.dumps(prepared.summary)}")
        return run.put(
            tables=prepared.tables, directory=Path(scratch), metadata={"counts": prepared.summary}
        )

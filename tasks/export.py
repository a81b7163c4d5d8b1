"""Stage 7: a Hugging Face directory, reloaded and compared before it is published."""

from rlcore.export.export import export_model
from rlcore.export.model_card import LineageRow, ModelCard
from rlcore.models.files import MODEL_FOLDER, model_directory
from schemas.artifacts import ArtifactRef
from schemas.data import Gsm8kSource, HubSource
from schemas.recipe import Recipe
from tasks.runtime.caching import StageRun, cached_stage


@cached_stage("export", kind="export")
def export(run: StageRun) -> ArtifactRef:
    """Write the RL policy with its model card; nothing is published unless it reloads equal."""
    policy = run.store.directory(run.parents["policy"])
    with run.store.scratch() as scratch:
        report = export_model(
            model_directory(policy),
            scratch / MODEL_FOLDER,
            dtype=run.recipe.export.dtype,
            card=_card(run),
            trust_remote_code=run.recipe.model.trust_remote_code,
        )
        return run.put(directory=scratch, metadata=report)


def _card(run: StageRun) -> ModelCard:
    """Return what the model card says: results, lineage, and how the recipe trained."""
    recipe, rl = run.recipe, run.recipe.rl
    lineage = tuple(
        LineageRow(stage, ref.kind, ref.key, ref.sha256) for stage, ref in run.parents.items()
    )
    return ModelCard(
        name=f"{recipe.name}-seed{recipe.seed}",
        checkpoint="rl",
        results=run.store.table(run.parents["evaluation"], "eval_results"),
        lineage=lineage,
        base_model=recipe.model.path,
        datasets=_datasets(recipe),
        training={
            "algorithm": rl.preset,
            "SFT": f"{recipe.sft.epochs} epoch(s)" if recipe.sft.enabled else "none",
            "RL iterations": str(run.store.manifest(run.parents["policy"]).metadata["iteration"]),
            "prompts x samples": f"{rl.rollout.prompts} x {rl.rollout.samples}",
            "RL learning rate": f"{rl.update.optimizer.lr:g}",
            "seed": str(recipe.seed),
        },
        evaluation={
            "sampled": f"{recipe.evaluate.samples} per prompt, T = {recipe.evaluate.temperature:g},"
            f" top_p = {recipe.evaluate.top_p:g}",
            "longest answer": f"{recipe.evaluate.max_new_tokens} tokens",
        },
    )


def _datasets(recipe: Recipe) -> tuple[str, ...]:
    """Return the hub names of the recipe's sources."""
    names = [
        source.hub_name if isinstance(source, Gsm8kSource) else source.name
        for source in recipe.data.sources
        if isinstance(source, Gsm8kSource | HubSource)
    ]
    return tuple(dict.fromkeys(names))

"""Retraining, step 4: the candidate becomes the champion; on request it is sent to the hub."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from rlcore.models.files import model_directory
from rlcore.retraining.champions import Champion, add_champion
from rlcore.retraining.gate_records import GateDecision
from rlcore.store.artifacts import ArtifactStore
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe


@task(name="promote", cache_policy=NO_CACHE, persist_result=False)
def promote(
    recipe: Recipe, outcome: GateDecision, *, candidate: ArtifactRef, after: int, recipe_digest: str
) -> Champion:
    """Return the entry that follows champion ``after``, made unless it is there. Raises
    ChampionMoved where another came first."""
    store = ArtifactStore(recipe.store, writer=f"flow run {flow_run.name} ({flow_run.id})")
    parents = store.manifest(outcome.ref).parents
    entry = add_champion(
        store,
        recipe.name,
        after=after,
        export=candidate,
        cause=outcome.verdict.value,
        decision=outcome.ref,
        evaluations={role: ref for role, ref in parents.items() if ref.kind == "evaluation"},
        recipe_digest=recipe_digest,
        by=str(flow_run.id or ""),
    )
    get_run_logger().info(f"champion {entry.number} of '{recipe.name}': export/{entry.export_key}")
    return entry


@task(name="push", cache_policy=NO_CACHE, persist_result=False)
def push(recipe: Recipe, entry: Champion, repository: str) -> str:
    """Upload the champion's export to the hub's model repository ``repository``, made private where
    there is none; return the URL of the commit. The token is the hub library's."""
    from huggingface_hub import HfApi

    store = ArtifactStore(recipe.store)
    hub = HfApi()
    hub.create_repo(repository, private=True, exist_ok=True)
    done = hub.upload_folder(
        repo_id=repository,
        folder_path=model_directory(store.directory(entry.export)),
        commit_message=f"Champion {entry.number} of {recipe.name}",
    )
    get_run_logger().info(f"champion {entry.number} is at {done.commit_url}")
    return done.commit_url

"""The steps of the flow retrain: what is new, whether the candidate is better than the champion on
the same test rows, and the new champion, on request sent to the hub."""

from functools import partial
from typing import Any
from uuid import UUID

import polars as pl
from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled

from rlcore.evaluation.evaluate import select_prompts
from rlcore.evaluation.promotion_rule import check_sets
from rlcore.evaluation.win_rate import greedy_answers, won_prompts
from rlcore.models.files import model_directory
from rlcore.results.paired import one_per_question
from rlcore.retraining.champions import Champion, add_champion, verified_export
from rlcore.retraining.gate_records import GateDecision, Side, ask, same_rows
from rlcore.retraining.news import News, news
from rlcore.retraining.news import observe as observe_data
from rlcore.store.artifacts import ArtifactStore
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef
from schemas.names import REWARD_MODEL
from schemas.recipe import Recipe
from tasks.evaluate_model import CHECKPOINT, evaluate_model, with_model
from tasks.run_page.page import artifact_key
from tasks.runtime.keys import MADE_OF, KeyParts
from tasks.runtime.stage_run import PipelineRun

# The name of the state of a run whose work another has done (flows/automations.yaml expects it).
SUPERSEDED = "Superseded"
BASE, RL = "base", "rl"  # checkpoints of the stage evaluate
SHOWN = ("prompt_set", "metric", "champion_mean", "candidate_mean", "gain", "low", "high", "bound")


@task(name="observe", cache_policy=NO_CACHE, persist_result=False)
def observe(recipe: Recipe) -> News:
    """Return what there is to learn that the champion has not seen. Raises as
    ``rlcore.retraining.news.observe``."""
    found = news(recipe, ArtifactReader(recipe.store), observe_data(recipe.data))
    for note in found.observed.notes:
        get_run_logger().warning(note)
    get_run_logger().info(found.told)
    return found


def done_since(run_id: UUID) -> FlowRun | None:
    """Return a run of the same deployment with the same parameters that began after this one was
    due, and completed: it has seen all that this one would. None where there is none, or no
    deployment made the run.

    Prefect starts all that came due while a run was in progress, the oldest first.
    """
    with get_client(sync_client=True) as client:
        mine = client.read_flow_run(run_id)
        if mine.deployment_id is None or mine.expected_start_time is None:
            return None
        completed = _alike(
            client,
            mine,
            state={"type": {"any_": [StateType.COMPLETED]}, "name": {"not_any_": [SUPERSEDED]}},
            start_time={"after_": mine.expected_start_time},
        )
    return next(iter(completed), None)


def supersede(run_id: UUID) -> int:
    """Close the runs of this one's deployment and parameters that came due before this one began
    and still wait; return how many. For a run that has done its work: none of them would find any,
    and each would take the time of a start to say so, in green."""
    with get_client(sync_client=True) as client:
        mine = client.read_flow_run(run_id)
        if mine.deployment_id is None or mine.start_time is None:
            return 0
        late = _alike(
            client,
            mine,
            state={"type": {"any_": [StateType.SCHEDULED]}},
            expected_start_time={"before_": mine.start_time},
        )
        for run in late:
            client.set_flow_run_state(
                run.id, Cancelled(name=SUPERSEDED, message=f"the run '{mine.name}' did its work")
            )
        return len(late)


def _alike(client: SyncPrefectClient, mine: FlowRun, **which: Any) -> list[FlowRun]:
    """Return the runs of this one's deployment and parameters; ``which``: fields of a filter."""
    runs = client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate(
            {"deployment_id": {"any_": [mine.deployment_id]}, **which}
        )
    )
    return [run for run in runs if run.parameters == mine.parameters]


def check_gate(run: PipelineRun, dataset: ArtifactRef) -> None:
    """Raise UserError where the gate could decide nothing on the test prompts of ``dataset``: a set
    is not there, or too small. Before anything is trained on it."""
    section = run.recipe.retrain
    if section is None:
        return
    recipe, prompts = run.recipe, run.store.table(dataset, "prompts")
    rows = select_prompts(prompts, recipe.evaluate.max_prompts, recipe.seed)
    if recipe.environment is None:  # copies of a question decide no more than one
        rows = one_per_question(rows)
    check_sets(rows, section.primary, section.guards)


@task(name="gate", cache_policy=NO_CACHE, persist_result=False)
def gate(
    recipe: Recipe,
    *,
    candidate: ArtifactRef,
    evaluation: ArtifactRef,
    champion: Champion | None,
    began_with: ArtifactRef | None,
    inputs_digest: str,
    recipe_digest: str,
) -> GateDecision:
    """Return the decision on the export ``candidate``, kept in the store.

    ``recipe``: that of the candidate's run, whose ``evaluation`` it is. ``began_with``: the export
    that its training began with, where that was a champion's. ``recipe_digest``: of the recipe as
    it was asked for. Raises as ``rlcore.retraining.gate_records.ask``.
    """
    assert recipe.retrain is not None, "the flow refuses a recipe without the section"
    store = ArtifactStore(recipe.store, writer=f"flow run {flow_run.name} ({flow_run.id})")
    side = Side(evaluation, RL)
    theirs = None
    if champion is not None:
        theirs = _champion_side(recipe, store, champion, side, began_with)
    outcome = ask(
        store,
        recipe.name,
        recipe.retrain,
        candidate=candidate,
        side=side,
        champion=champion,
        champion_side=theirs,
        won=partial(_won, recipe, store),
        inputs_digest=inputs_digest,
        recipe_digest=recipe_digest,
        by=str(flow_run.id or ""),
    )
    get_run_logger().info(outcome.sentence)
    create_table_artifact(
        key=artifact_key(recipe.name, "gate"),
        table=[{column: row[column] for column in SHOWN} for row in outcome.rows],
        description=outcome.sentence,
    )
    return outcome


def _champion_side(
    recipe: Recipe,
    store: ArtifactStore,
    champion: Champion,
    candidate: Side,
    began_with: ArtifactRef | None,
) -> Side:
    """Return the champion's evaluation on the candidate's rows, by the candidate's reward: one that
    is there, else a new one."""
    began = began_with is not None and began_with.sha256 == champion.export_sha256
    if began and BASE in recipe.evaluate.checkpoints:
        return Side(candidate.evaluation, BASE)
    export = verified_export(store, champion)
    theirs = store.manifest(export).parents.get("evaluation")
    if theirs is not None and _judged_alike(store, theirs, candidate.evaluation):
        recorded = Side(theirs, RL)
        if same_rows(store, recorded, candidate):
            return recorded
    log = get_run_logger().info
    log(f"champion {champion.number} is evaluated again: other rows, reward or code since")
    directory = str(model_directory(store.directory(export)))
    reward_model = store.manifest(candidate.evaluation).parents.get(REWARD_MODEL)
    again = evaluate_model(with_model(recipe, directory), reward_model=reward_model, log=log)
    return Side(again.ref, CHECKPOINT)


def _judged_alike(store: ArtifactStore, one: ArtifactRef, other: ArtifactRef) -> bool:
    """Return whether two evaluations drew and scored by equal settings, code and reward model."""
    parts: list[Any] = []
    for ref in (one, other):
        manifest = store.peek(ref.kind, ref.key)
        if manifest is None or manifest.sha256 != ref.sha256:
            return False
        made = KeyParts.from_json(manifest.metadata.get(MADE_OF))
        scorer = manifest.parents.get(REWARD_MODEL)
        parts.append(made and (made.recipe, made.code, made.inputs, scorer and scorer.sha256))
    return parts[0] is not None and parts[0] == parts[1]


def _won(recipe: Recipe, store: ArtifactStore, ours: Side, theirs: Side) -> pl.DataFrame:
    """Return what the judge of ``evaluate.win_rate`` says of our answers against theirs."""
    answers = [
        greedy_answers(store.table(side.evaluation, "completions"), side.checkpoint)
        for side in (ours, theirs)
    ]
    return won_prompts(recipe, *answers, log=get_run_logger().info)


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

"""Retraining: train again when there is something new, promote only what is better."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed

from flows.flow_run_names import retrain_name
from flows.paths import RECIPES
from flows.rl_pipeline import rl_pipeline
from rlcore.evaluation.promotion_rule import Verdict
from rlcore.models.files import model_directory
from rlcore.recipes.load import load_recipe, recipe_digest
from rlcore.recipes.redaction import redacting
from rlcore.results.folders import run_directory
from rlcore.results.run import Run
from rlcore.retraining.champions import Champion, ChampionMoved, champion, verified_export
from rlcore.retraining.gate_records import GateDecision
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.recipe import Recipe
from schemas.stages import Stage
from tasks.retraining import SUPERSEDED, done_since, gate, observe, promote, push, supersede
from tasks.run_page.page import show_ends_below
from tasks.runtime.alerts import FAILED, HELD, PROMOTED, tell
from tasks.runtime.crashes import close_children
from tasks.runtime.process import prepare_process

# Names of states, and so of events, which flows/automations.yaml expects.
NOTHING_NEW = "Nothing new"
ENDS = {
    Verdict.FIRST: "Promoted",
    Verdict.PROMOTED: "Promoted",
    Verdict.WORSE: "Held (worse)",
    Verdict.UNCERTAIN: "Held (uncertain)",
}
ROUNDS = 5  # of gates whose champion was replaced meanwhile


def tell_failed(flow: Any, flow_run: Any, state: State) -> None:
    """Hook: emit that a retraining ended without a decision."""
    del flow
    if state.is_failed() or state.is_crashed():
        name = Path(str(flow_run.parameters.get("recipe", flow_run.name))).stem
        text = f"retraining {(state.name or 'ended').lower()}: {state.message or 'no message'}"
        tell(FAILED, name, text, {"flow_run": flow_run.id, "state": state.name})


@flow(
    name="retrain",
    flow_run_name=retrain_name,
    on_failure=[tell_failed],
    on_crashed=[show_ends_below, close_children, tell_failed],
    on_cancellation=[show_ends_below, close_children],
)
def retrain(recipe: str, overrides: dict[str, Any] | None = None) -> State:
    """Train a recipe again if there is something new, and promote what is better.

    Args:
        recipe: name of a file in flows/recipes, or the path of a YAML file; it has the section
            retrain.
        overrides: dotted recipe keys and their values, e.g. {"rl.update.epochs": 2}.
    """
    prepare_process()
    with redacting():
        return _retrain(recipe, overrides)


def _retrain(recipe: str, overrides: dict[str, Any] | None) -> State:
    asked = load_recipe(recipe, overrides, directory=RECIPES)
    if asked.retrain is None:
        raise UserError(
            f"recipe '{asked.name}' has no section retrain; add one (retrain: {{}} will do), see"
            " docs/do/retrain.md"
        )
    done = done_since(flow_run.id)
    if done is not None:
        message = f"the run '{done.name}' began {done.start_time:%Y-%m-%d %H:%M:%S} UTC, after this"
        return Completed(name=SUPERSEDED, message=f"{message} one was due, and did its work")
    found = observe(asked)
    if found.nothing:
        supersede(flow_run.id)
        return Completed(name=NOTHING_NEW, message=found.nothing)
    began_with, more = _start(asked, found.champion)
    given = {**(overrides or {}), **found.observed.pins, **more}
    summary = rl_pipeline(recipe=recipe, overrides=given)
    folder = run_directory(recipe, summary["flow_run_id"])
    trained = Run.open(folder.name, folder.parent)
    outcome, entry = _decide(asked, trained, began_with, found.observed.digest)
    supersede(flow_run.id)
    if entry is None:
        tell(HELD, asked.name, outcome.sentence, {"decision": outcome.ref.key})
    else:
        tell(PROMOTED, asked.name, outcome.sentence, asdict(entry))
        _push(asked, entry)
    result = {
        "verdict": outcome.verdict.value,
        "sentence": outcome.sentence,
        "champion": None if entry is None else entry.number,
        "run": trained.name,
    }
    return Completed(name=ENDS[outcome.verdict], message=outcome.sentence, data=result)


def _start(recipe: Recipe, reigning: Champion | None) -> tuple[ArtifactRef | None, dict[str, Any]]:
    """Return the champion's export that training begins with, if any, and the keys that say so.

    Raises UserError where the champion's export is gone: the gate would find out after training.
    """
    assert recipe.retrain is not None, "the flow refuses a recipe without the section"
    if reigning is None:
        return None, {}
    store = ArtifactReader(recipe.store)
    export = verified_export(store, reigning)
    if recipe.retrain.start == "base":
        return None, {}
    get_run_logger().info(f"training begins with champion {reigning.number}")
    return export, {
        "model.path": str(model_directory(store.directory(export))),
        "model.revision": None,
        "model.from_scratch": None,
        "sft.enabled": False,
    }


def _decide(
    asked: Recipe, trained: Run, began_with: ArtifactRef | None, inputs_digest: str
) -> tuple[GateDecision, Champion | None]:
    """Return the gate's decision on what was trained, and the new entry where it is promoted; the
    gate is asked again where another became champion meanwhile."""
    candidate, evaluation = trained.result(Stage.EXPORT), trained.result(Stage.EVALUATE)
    assert candidate is not None, "the pipeline has completed"
    assert evaluation is not None, "the pipeline has completed"
    digest = recipe_digest(asked)
    for attempt in range(1, ROUNDS + 1):
        reigning = champion(trained.store, asked.name)
        outcome = gate(
            trained.recipe,
            candidate=candidate,
            evaluation=evaluation,
            champion=reigning,
            began_with=began_with,
            inputs_digest=inputs_digest,
            recipe_digest=digest,
        )
        if not outcome.promotes:
            break
        try:
            after = 0 if reigning is None else reigning.number
            return outcome, promote(
                trained.recipe, outcome, candidate=candidate, after=after, recipe_digest=digest
            )
        except ChampionMoved as moved:
            if attempt == ROUNDS:
                raise
            get_run_logger().warning(str(moved))
    return outcome, None


def _push(recipe: Recipe, entry: Champion) -> None:
    """Send the champion to the hub where the recipe asks for it; a failure undoes nothing."""
    assert recipe.retrain is not None, "the flow refuses a recipe without the section"
    repository = recipe.retrain.push
    if repository is None:
        return
    state = push(recipe, entry, repository, return_state=True)
    if not state.is_completed():
        get_run_logger().warning(
            f"champion {entry.number} was not sent to {repository}: {state.message}; it is"
            f" champion all the same. To send it: hf upload {repository} FOLDER, with the folder of"
            f" export/{entry.export_key}"
        )

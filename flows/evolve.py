"""Evolving: rounds of a policy and verifiers over the problems of a recipe, weights unchanged."""

from typing import Any, Literal

from prefect import flow

from flows.flow_run_names import evolve_name
from flows.paths import RECIPES
from rlcore.recipes.redaction import redacting
from tasks.evolve import (
    evolve_round,
    evolve_scores,
    independent_sample,
    open_evolve,
    publish_figures,
)
from tasks.runtime.crashes import close_children

Split = Literal["test", "validation", "train"]


@flow(
    name="evolve",
    flow_run_name=evolve_name,
    on_crashed=[close_children],
    on_cancellation=[close_children],
)
def evolve(
    model: str = "latest",
    recipe: str = "quickstart",
    split: Split = "test",
    overrides: dict[str, Any] | None = None,
    revision: str | None = None,
) -> dict[str, Any]:
    """Let a model improve its answers over rounds, by its own verdicts, and report what it got.

    Args:
        model: a run, whose export or policy it is; a Hugging Face directory; or a name of the hub.
        recipe: whose problems, rewards, section evolve and hardware: a name or a YAML file.
        split: of the recipe's data.
        overrides: dotted recipe keys and their values, e.g. {"evolve.rounds": 3}.
        revision: commit of a model of the hub.
    """
    given = overrides or {}
    with (
        redacting(),
        open_evolve(model, recipe, given, recipes=RECIPES, split=split, revision=revision) as run,
    ):
        result = run.result
        if result is None:
            for number in range(1, run.recipe.evolve.rounds + 1):
                evolve_round(run, number)
                independent_sample(run, number)
            result = evolve_scores(run)
        results = run.store.table(result, "eval_results")
        publish_figures(run, results)
        return {"kept": result.uri, "figures": results.to_dicts()}

"""The pipeline: base model -> data -> SFT -> preference -> reward model -> RL -> evaluation ->
export, each stage cached by content; those that train where the recipe has them."""

from collections.abc import Callable
from typing import Any

from prefect import flow

from flows.flow_run_names import pipeline_name
from flows.paths import RECIPES
from flows.rl_loop import rl
from schemas.artifacts import ArtifactRef
from schemas.names import BASE_MODEL
from schemas.recipe import Recipe
from schemas.stages import Stage, stage_parents
from tasks.base_model import base_model
from tasks.evaluate import evaluate
from tasks.export import export
from tasks.preference import preference
from tasks.prepare_data import check_prepared, prepare_data
from tasks.retraining import check_gate
from tasks.reward_model import reward_model
from tasks.run_page.page import show_end
from tasks.run_page.summary import write_summary
from tasks.runtime.alerts import alert_end
from tasks.runtime.caching import CachedStage
from tasks.runtime.crashes import close_children
from tasks.runtime.run import open_run, with_fields
from tasks.sft import sft

STAGES = {
    Stage(stage.stage): stage
    for stage in (
        *(base_model, prepare_data, sft, preference, reward_model, rl),
        *(evaluate, export),
    )
}


@flow(
    name="rl-pipeline",
    flow_run_name=pipeline_name,
    on_failure=[alert_end],
    on_crashed=[close_children, show_end, alert_end],
    on_cancellation=[close_children, show_end],
)
def rl_pipeline(
    recipe: str = "quickstart",
    seed: int | None = None,
    iterations: int | None = None,
    learning_rate: float | None = None,
    prompts: int | None = None,
    samples: int | None = None,
    overrides: dict[str, Any] | None = None,
    accept_code: bool = False,
    refresh: tuple[Stage, ...] = (),
    until: Stage | None = None,
) -> dict[str, Any]:
    """Make a model from a recipe.

    Args:
        recipe: name of a file in flows/recipes, or the path of a YAML file.
        seed: of everything drawn at random; as in the recipe if empty, like the next four.
        iterations: of RL (rl.iterations).
        learning_rate: of RL (rl.update.optimizer.lr).
        prompts: per RL iteration (rl.rollout.prompts).
        samples: responses per prompt (rl.rollout.samples).
        overrides: dotted recipe keys and their values, e.g. {"rl.update.epochs": 2}.
        accept_code: let an RL run that stopped half-way continue though its code has changed since.
        refresh: stages that are made again though the store has their results, which stay there.
        until: the stage after which the run ends.
    """
    fields = {
        "seed": seed,
        "rl.iterations": iterations,
        "rl.update.optimizer.lr": learning_rate,
        "rl.rollout.prompts": prompts,
        "rl.rollout.samples": samples,
    }
    with open_run(
        recipe,
        with_fields(overrides, fields),
        recipes=RECIPES,
        accept_code=accept_code,
        refresh=refresh,
        until=until,
    ) as run:

        def call(stage: CachedStage, **parents: ArtifactRef) -> ArtifactRef:
            made = stage(run, **parents)
            if stage is prepare_data:
                check_prepared(run, made, parents[BASE_MODEL])
                check_gate(run, made)
            return made

        return write_summary(run, stages(run.recipe, call, until), until=until)


def stages(
    recipe: Recipe, call: Callable[..., ArtifactRef], until: Stage | None = None
) -> dict[Stage, ArtifactRef]:
    """Pass each stage of ``recipe`` up to ``until`` to ``call``, in order, with its parents by
    role: what ``call`` returned for them. Return that by stage."""
    made: dict[Stage, ArtifactRef] = {}
    for stage, parents in stage_parents(recipe).items():
        read = {role: made[parent] for role, parent in parents.items()}
        made[stage] = call(STAGES[stage], **read)
        if stage == until:
            break
    return made

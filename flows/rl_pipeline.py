"""The pipeline: base model -> data -> SFT -> reward model -> RL -> evaluation -> export, each stage
cached by content; SFT and the reward model where the recipe has them."""

from collections.abc import Callable
from typing import Any

from prefect import flow

from flows.places import RECIPES
from flows.rl_loop import rl
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe
from tasks.base_model import base_model
from tasks.evaluate import evaluate
from tasks.export import export
from tasks.prepare_data import check_rewards, prepare_data
from tasks.reward_model import reward_model
from tasks.run_page.summary import publish_data, publish_summary
from tasks.runtime.caching import CachedStage
from tasks.runtime.crashes import close_children
from tasks.runtime.run import open_run
from tasks.sft import sft


@flow(
    name="rl-pipeline",
    flow_run_name="{recipe}",
    on_crashed=[close_children],
    on_cancellation=[close_children],
)
def rl_pipeline(
    recipe: str = "quickstart",
    overrides: dict[str, Any] | None = None,
    accept_code: bool = False,
) -> dict[str, Any]:
    """Make a model from a recipe.

    Args:
        recipe: name of a file in flows/recipes, or the path of a YAML file.
        overrides: dotted recipe keys and their values, e.g. {"rl.iterations": 5, "seed": 1}.
        accept_code: let an RL run that stopped half-way go on though its code has changed since.
    """
    with open_run(recipe, overrides or {}, recipes=RECIPES, accept_code=accept_code) as run:

        def call(stage: CachedStage, **parents: ArtifactRef) -> ArtifactRef:
            made = stage(run, **parents)
            if stage is prepare_data:
                publish_data(run, made)
                check_rewards(run, made)
            return made

        return publish_summary(run, **stages(run.recipe, call))


def stages(recipe: Recipe, call: Callable[..., ArtifactRef]) -> dict[str, ArtifactRef]:
    """Pass each stage of ``recipe`` to ``call``, in order, with its parents by role: what ``call``
    returned for them. Return what the summary reads, by ``publish_summary``'s names."""
    base = call(base_model)
    dataset = call(prepare_data, base_model=base)
    warm = base
    if recipe.sft.enabled:
        warm = call(sft, base_model=base, dataset=dataset)
    scorer = {}
    if recipe.reward_model is not None:
        scorer["reward_model"] = call(reward_model, dataset=dataset, policy=warm)
    policy = call(rl, dataset=dataset, policy=warm, **scorer)
    trained = {"sft": warm, "rl": policy} if recipe.sft.enabled else {"rl": policy}
    evaluation = call(evaluate, dataset=dataset, base_model=base, **trained, **scorer)
    exported = call(export, dataset=dataset, policy=policy, evaluation=evaluation)
    return dict(warm=warm, policy=policy, evaluation=evaluation, exported=exported, **scorer)

"""The pipeline: base model -> data -> SFT -> reward model -> RL -> evaluation -> export, each stage
cached by content; SFT and the reward model where the recipe has them."""

from typing import Any

from prefect import flow

from flows.places import RECIPES
from flows.rl_loop import rl
from tasks.base_model import base_model
from tasks.evaluate import evaluate
from tasks.export import export
from tasks.prepare_data import prepare_data
from tasks.reward_model import reward_model
from tasks.run_page.summary import publish_data, publish_summary
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
        base = base_model(run)
        dataset = prepare_data(run, base_model=base)
        publish_data(run, dataset)
        warm = base
        if run.recipe.sft.enabled:
            warm = sft(run, base_model=base, dataset=dataset)
        scorer = {}
        if run.recipe.reward_model is not None:
            scorer["reward_model"] = reward_model(run, dataset=dataset, policy=warm)
        policy = rl(run, dataset=dataset, policy=warm, **scorer)
        trained = {"sft": warm, "rl": policy} if warm is not base else {"rl": policy}
        evaluation = evaluate(run, dataset=dataset, base_model=base, **trained, **scorer)
        exported = export(run, dataset=dataset, policy=policy, evaluation=evaluation)
        return publish_summary(
            run, warm=warm, policy=policy, evaluation=evaluation, exported=exported, **scorer
        )

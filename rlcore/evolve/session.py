"""The model, the problems and the workers of one evolving; nothing starts before its first use."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from rlcore.cluster.progress import activity
from rlcore.data.prepare import prepare
from rlcore.engines.pool import load_model_directory
from rlcore.evaluation.evaluate import select_prompts
from rlcore.evolve.agents import Agents
from rlcore.evolve.prompts import AgentPrompts, Row, problems_of
from rlcore.models.tokenizer import model_tokenizer
from rlcore.rewards.truths import check_covered
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rl.workers import Workers
from rlcore.rollout.episodes import episodes_of
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer


def with_turns(recipe: Recipe) -> Recipe:
    """Return ``recipe`` whose environment, if any, has the turns of ``evolve.max_turns``."""
    environment = recipe.environment
    if environment is None:
        return recipe
    played = environment.model_copy(update={"max_turns": recipe.evolve.max_turns})
    return recipe.model_copy(update={"environment": played})


@dataclass(eq=False)
class Session:
    """Asks the model of the directory ``source``, whose turns end with ``stop_ids``, the problems
    of ``split`` of ``recipe.data``; ``workers``: of ``recipe``."""

    recipe: Recipe
    source: Path
    stop_ids: tuple[int, ...]
    split: str
    workers: Workers
    log: Callable[[str], None]

    @cached_property
    def prompts(self) -> pl.DataFrame:
        """The rows of the Prompts table that are asked, with their ground truths.

        Raises UserError as ``prepare`` and ``select_prompts`` do, and where no reward function
        scores a row.
        """
        recipe = self.recipe
        prepared = prepare(
            recipe.data,
            tokenizer=self._tokenizer,
            seed=recipe.seed,
            sft_max_tokens=None,
            environment=recipe.environment,
        )
        self.log(prepared.sentence())
        prompts = prepared.tables["prompts"]
        check_covered(prompts, recipe.reward.functions)
        return select_prompts(prompts, recipe.evolve.max_prompts, recipe.seed, self.split)

    @cached_property
    def problems(self) -> list[Row]:
        """What the agents may know of them. Raises UserError for one that leaves no room."""
        problems = problems_of(self.prompts)
        self._asked.check(problems)
        return problems

    def agents(self) -> Agents:
        """Start the engines with the model's weights; return the agents that they are."""
        recipe = self.recipe
        engines = self.workers.engines(self.source)
        with activity(f"the load of {recipe.model.path}"):
            load_model_directory(engines, self.source)
        environments = self.workers.environments()
        return Agents(
            section=recipe.evolve,
            seed=recipe.seed,
            engines=engines,
            tokenizer=self._tokenizer,
            stop_ids=self.stop_ids,
            prompts=self._asked,
            episodes=episodes_of(recipe, engines, environments, self._tokenizer),
        )

    def score(self, rows: list[RewardRow]) -> list[Reward]:
        """Score by the recipe's reward functions; those that a model or an environment computes
        check no answer."""
        return self.workers.rule_rewards().score(rows)

    @cached_property
    def _tokenizer(self) -> "ChatTokenizer":
        return model_tokenizer(self.recipe.model, self.source)

    @cached_property
    def _asked(self) -> AgentPrompts:
        environments = self.workers.environments()
        tools = () if environments is None else environments.tools
        return AgentPrompts(
            self.recipe.evolve, self._tokenizer, self.recipe.model.max_tokens, tools
        )

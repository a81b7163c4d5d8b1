"""Rules between the recipe's sections: what an episode consists of, and its length."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from schemas.generators import EnvironmentSource
from schemas.names import ENVIRONMENT
from schemas.reward_model import SampledPreferences

if TYPE_CHECKING:
    from schemas.recipe import Recipe


def environment_rules(recipe: "Recipe") -> Iterator[str]:
    """Yield a sentence where an environment is named and not set, or cannot be used."""
    named = any(function.name == ENVIRONMENT for function in recipe.reward.functions)
    if recipe.environment is None:
        if named:
            yield (
                "reward.functions names 'environment' and the section environment is null; set"
                " it, or take the function out"
            )
        if any(isinstance(source, EnvironmentSource) for source in recipe.data.sources):
            yield (
                "data.sources holds kind environment and the section environment is null; set"
                " environment.name"
            )
        return
    if recipe.reward_model and isinstance(recipe.reward_model.preferences, SampledPreferences):
        yield (
            "reward_model.preferences are sampled as single answers and environment ="
            f" {recipe.environment.name!r} plays episodes; take preferences from a file, or set"
            " environment to null"
        )


def context_rules(recipe: "Recipe") -> Iterator[str]:
    """Yield a sentence where the longest episode does not fit into ``model.max_tokens``."""
    limits = {
        "rl.rollout.max_new_tokens": recipe.rl.rollout.max_new_tokens,
        "evaluate.max_new_tokens": recipe.evaluate.max_new_tokens,
    }
    if recipe.reward_model and isinstance(recipe.reward_model.preferences, SampledPreferences):
        sampled = recipe.reward_model.preferences.max_new_tokens
        limits["reward_model.preferences.max_new_tokens"] = sampled
    for path, new_tokens in limits.items():
        needed = longest_sequence(recipe, new_tokens)
        if needed > recipe.model.max_tokens:
            what = path if recipe.environment is None else recipe.environment.turns_of(path)
            yield (
                f"data.max_prompt_tokens + {what} = {needed} exceeds"
                f" model.max_tokens = {recipe.model.max_tokens}; raise model.max_tokens or lower"
                f" {'one of the two' if recipe.environment is None else 'one of them'}"
            )
    scratch = recipe.model.from_scratch
    if recipe.environment and recipe.environment.observation >= recipe.model.max_tokens:
        yield (
            "environment.max_observation_tokens ="
            f" {recipe.environment.max_observation_tokens} leaves no room for a turn in"
            f" model.max_tokens = {recipe.model.max_tokens}; lower it"
        )
    if scratch and scratch.max_position_embeddings < recipe.model.max_tokens:
        yield (
            f"model.from_scratch.max_position_embeddings = {scratch.max_position_embeddings} is"
            f" below model.max_tokens = {recipe.model.max_tokens}; raise it"
        )


def longest_sequence(recipe: "Recipe", new_tokens: int) -> int:
    """Return the most tokens of a prompt and what follows it, ``new_tokens`` a turn."""
    if recipe.environment is None:
        return recipe.data.max_prompt_tokens + new_tokens
    return recipe.environment.tokens(recipe.data.max_prompt_tokens, new_tokens)

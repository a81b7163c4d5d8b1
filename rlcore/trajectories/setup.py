"""From a recipe and its workers to how episodes are played."""

from typing import Any

from rlcore.data.turns import TurnEncoder
from rlcore.engines.pool import EnginePool
from rlcore.envs.pool import EnvironmentPool
from rlcore.trajectories.episodes import Episodes
from schemas.recipe import Recipe


def episodes_of(
    recipe: Recipe, engines: EnginePool, environments: EnvironmentPool | None, tokenizer: Any
) -> Episodes | None:
    """Return how episodes of ``recipe`` are played; None where an episode is one turn.

    Raises UserError where the chat template cannot carry an episode.
    """
    if environments is None:
        return None
    encoder = TurnEncoder(
        tokenizer, environments.tools, environments.section.max_observation_tokens
    )
    encoder.check()
    return Episodes(engines, environments, encoder, recipe.model.max_tokens)

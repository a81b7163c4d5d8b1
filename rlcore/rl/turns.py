"""What the turns of an episode are credited with."""

import json
from dataclasses import dataclass

import numpy as np
import polars as pl

from rlcore.ragged import mean_of, to_arrays
from schemas.names import ENVIRONMENT
from schemas.outcomes import StopReason
from schemas.recipe import Recipe


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """``per_token``: per token of each row, what is given at the end of a turn. ``penalties``
    [rows]: what invalid turns take off the score. ``metrics``: of the episodes."""

    per_token: list[np.ndarray]
    penalties: np.ndarray
    metrics: dict[str, float]


def turn_credit(frame: pl.DataFrame, recipe: Recipe) -> TurnCredit | None:
    """Return the credit of each turn of ``frame``, at the turn's last policy token: the weight of
    the environment in the score x its reward, where that is a part of the row's score, less the
    penalty of a turn that it cannot read. None where an episode is one turn.

    The penalty is AlphaApollo's ``apply_invalid_action_penalty``: part of the score that group
    statistics see. Turns are not normalised by their number: where the policy decides when to stop,
    that is biased.
    """
    if recipe.environment is None:
        return None
    penalty = recipe.environment.invalid_action_penalty
    environment = sum(f.weight for f in recipe.reward.functions if f.name == ENVIRONMENT)
    ends, rewards = to_arrays(frame["turn_ends"]), to_arrays(frame["turn_rewards"])
    valid = [np.asarray(row, dtype=bool) for row in frame["valid_actions"].to_list()]
    lengths = frame["token_ids"].list.len().to_list()
    counted = [ENVIRONMENT in json.loads(parts or "{}") for parts in frame["parts"]]
    penalties, per_token = np.zeros(len(ends)), []
    for row, length in enumerate(lengths):
        invalid = penalty * ~valid[row]
        penalties[row] = invalid.sum()
        tokens = np.zeros(length)
        weight = environment if counted[row] else 0.0
        np.add.at(tokens, ends[row] - 1, weight * rewards[row] - invalid)
        per_token.append(tokens)
    metrics = {
        "episode/valid_action_ratio": float(np.concatenate(valid).mean()),
        "episode/done_ratio": mean_of(frame["stop_reason"] == StopReason.DONE.value),
        "episode/environment_reward/mean": float(np.mean([r.sum() for r in rewards])),
    }
    return TurnCredit(per_token, penalties, metrics)

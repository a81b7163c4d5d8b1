"""What the advantage phase refuses, and what it shapes, before anything is learnt from it."""

import numpy as np
import polars as pl
import pytest

from rlcore.recipes.load import load_recipe
from rlcore.rl.advantage import shaped_scores, signal_of, with_advantages
from rlcore.rl.batch import beside
from rlcore.rl.groups import split_by_signal
from schemas.errors import UserError
from tests.rlcore.rl.conftest import RECIPES


def own_estimator(batch: object) -> np.ndarray:
    """An advantage per trajectory and nothing for a critic."""
    return np.zeros(2)


def failing_estimator(batch: object) -> np.ndarray:
    return np.zeros(2) / {}["spread"]


def advantages(over: dict, correct: list[bool | None], *, critic: bool) -> None:
    """Run the phase's arithmetic on two responses of one token to one prompt."""
    recipe = load_recipe("quickstart-vapo", over, directory=RECIPES)
    rollouts = pl.DataFrame(
        {
            "trajectory_id": ["a", "b"],
            "uid": ["x", "x"],
            "prompt_tokens": [1, 1],
            "loss_mask": [[False, True], [False, True]],
            "response": ["1", "2"],
            "finish_reason": ["stop", "stop"],
            "turn_ends": [[2], [2]],
        }
    )
    rewards = pl.DataFrame(
        {
            "trajectory_id": ["a", "b"],
            "outcome": ["ok", "ok"],
            "score": [1.0, 0.0],
            "correct": pl.Series(correct, dtype=pl.Boolean),
            "parts": ["{}", "{}"],
            "failures": ["{}", "{}"],
        }
    )
    ones = pl.Series([[0.0, 1.0], [0.0, 1.0]])
    scores = {"old_logprobs": ones, "entropies": ones, **({"values": ones} if critic else {})}
    with_advantages(beside(rollouts, rewards).with_columns(**scores), recipe, None)


def test_critic_needs_returns_of_a_users_estimator() -> None:
    """Without them the critic would have nothing to learn, in every iteration."""
    name = f"{__name__}:own_estimator"
    with pytest.raises(
        UserError, match=r"rl\.critic is set and .*own_estimator' returns no returns"
    ):
        advantages(
            {"rl.algorithm.advantage": name, "rl.algorithm.gae": {}}, [True, False], critic=True
        )


def test_a_users_estimator_that_fails_ends_in_a_sentence() -> None:
    over = {"rl.algorithm.advantage": f"{__name__}:failing_estimator", "rl.algorithm.gae": {}}
    said = r"rl\.algorithm\.advantage = .* failed: KeyError: 'spread'"
    with pytest.raises(UserError, match=said):
        advantages(over, [True, False], critic=True)


def test_positive_loss_needs_somebody_who_judges() -> None:
    """A reward without acc made the positive-example loss 0 for ever, and nobody said so."""
    with pytest.raises(UserError, match=r"positive_nll\.coef = 0\.1 and no reward function judges"):
        advantages({}, [None, None], critic=True)
    advantages({"rl.algorithm.positive_nll.threshold": 0.5}, [None, None], critic=True)
    advantages({}, [True, None], critic=True)


def test_overlong_penalty_joins_the_score_and_not_the_filter() -> None:
    """Shaping reaches what is trained on; the filter looks at the score before it."""
    recipe = load_recipe("quickstart-dapo", directory=RECIPES)
    lengths = [30, 36, 40, 40]
    rollouts = pl.DataFrame(
        {
            "trajectory_id": list("abcd"),
            "uid": ["x", "x", "y", "y"],
            "loss_mask": [[True] * n for n in lengths],
        }
    )
    rewards = pl.DataFrame(
        {
            "trajectory_id": list("abcd"),
            "score": [1.0, 1.0, 1.0, None],
            "correct": [True, True, True, None],
        }
    )
    frame = beside(rollouts, rewards)
    shaped, metrics = shaped_scores(frame, recipe, None)
    assert np.allclose(shaped, [1.0, 0.5, 0.0, np.nan], equal_nan=True)
    assert metrics["reward/overlong_fraction"] == 0.75
    signal = signal_of(frame, "accuracy", recipe, None)
    assert split_by_signal(rollouts["uid"].to_numpy(), signal, tolerance=1e-9)[0] == []
    final = signal_of(frame, "final_score", recipe, None)
    assert split_by_signal(rollouts["uid"].to_numpy(), final, tolerance=1e-9)[0] == ["x"]


def test_groups_without_verdicts_are_filtered_by_their_scores() -> None:
    """Else dynamic sampling by accuracy would drop every prompt that only a judge scores."""
    recipe = load_recipe("quickstart", directory=RECIPES)
    frame = pl.DataFrame(
        {
            "uid": ["x", "x", "y", "y", "z", "z"],
            "score": [1.0, 0.0, 0.1, 0.9, 0.4, 0.4],
            "correct": [True, False, None, None, None, None],
            "outcome": ["ok"] * 6,
            "detail": [""] * 6,
        }
    )
    signal = signal_of(frame, "accuracy", recipe, None)
    kept, constant, _ = split_by_signal(frame["uid"].to_numpy(), signal, tolerance=1e-9)
    assert (kept, constant) == (["x", "y"], ["z"])

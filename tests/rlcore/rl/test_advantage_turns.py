"""Turns are credited so that the policy gradient is that of the expected reward."""

import itertools
import json
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest

from flows.paths import RECIPES
from rlcore.algorithms.advantages import AdvantageInput, estimate
from rlcore.recipes.load import load_recipe
from rlcore.rl.advantage import shaped_scores, turn_credit
from rlcore.rl.batch import beside
from schemas.rl import RewardFunction

STOP = 1  # the first action that ends the episode: the policy decides how many turns it has
FIRST, SECOND = np.array([0.3, -0.2, 0.5]), np.array([[0.1, 0.4, -0.3], [0, 0, 0], [0.7, -0.6, 0]])
REWARD_1 = np.array([0.25, 1.5, -0.5])
REWARD_2 = np.array([[1.0, -1.0, 0.5], [0, 0, 0], [2.0, 0.25, -0.75]])


@dataclass(frozen=True)
class Episode:
    """First action, second action (None after STOP), its probability, gradients per token."""

    first: int
    second: int | None

    @property
    def probability(self) -> float:
        p = softmax(FIRST)[self.first]
        return p if self.second is None else p * softmax(SECOND[self.first])[self.second]

    @property
    def mask(self) -> np.ndarray:
        """Prompt, action, and after two tokens of observation the second action."""
        tail = [] if self.second is None else [False, False, True]
        return np.array([False, True, *tail])

    @property
    def rewards(self) -> np.ndarray:
        tail = [] if self.second is None else [0, 0, REWARD_2[self.first][self.second]]
        return np.array([0, REWARD_1[self.first], *tail])

    def gradient(self, advantages: np.ndarray) -> np.ndarray:
        """Return [4, 3]: sum over policy tokens of advantage x the gradient of its log-prob."""
        total = np.zeros((4, 3))
        total[0] = advantages[1] * (np.eye(3)[self.first] - softmax(FIRST))
        if self.second is not None:
            here = np.eye(3)[self.second] - softmax(SECOND[self.first])
            total[1 + self.first] = advantages[4] * here
        return total


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


EPISODES = [Episode(STOP, None), *(Episode(a, b) for a in (0, 2) for b in range(3))]


def exact() -> np.ndarray:
    """The gradient of the expected sum of rewards, by reward-to-go, over all episodes."""
    return sum(e.probability * e.gradient(np.cumsum(e.rewards[::-1])[::-1]) for e in EPISODES)  # pyright: ignore[reportReturnType]


def given(episodes: tuple[Episode, ...], **fields: object) -> AdvantageInput:
    return AdvantageInput(
        scores=np.array([e.rewards.sum() for e in episodes]),
        group_ids=np.zeros(len(episodes)),
        masks=[e.mask for e in episodes],
        turn_rewards=[e.rewards for e in episodes],
        **fields,  # pyright: ignore[reportArgumentType]
    )


def expected(name: str, size: int, fields: dict[str, object], **options: object) -> np.ndarray:
    """The expectation of the estimated gradient over all groups of ``size`` episodes."""
    total = np.zeros((4, 3))
    for group in itertools.product(EPISODES, repeat=size):
        filled = {key: value(group) if callable(value) else value for key, value in fields.items()}
        result = estimate(name, given(group, **filled), **options)
        here = sum(e.gradient(a) for e, a in zip(group, result.advantages, strict=True)) / size
        total += np.prod([e.probability for e in group]) * here
    return total


def values(group: tuple[Episode, ...]) -> list[np.ndarray]:
    """A critic's values: any function of the state before each action, here no good one."""
    return [
        np.where(e.mask, 0.7 + 0.3 * e.first * (np.arange(len(e.mask)) > 1), 99.0) for e in group
    ]


@pytest.mark.parametrize(
    ("name", "size", "fields", "options", "factor"),
    [
        ("rloo", 2, {}, {}, 1.0),
        ("grpo", 3, {}, {"norm_by_std": False}, 2 / 3),  # its mean holds the row itself
        ("remax", 1, {"baselines": lambda group: np.full(len(group), 0.4)}, {}, 1.0),
        ("gae", 1, {"values": values}, {"whiten": False}, 1.0),
    ],
)
def test_estimators_without_std_give_the_exact_gradient(
    name, size, fields, options, factor
) -> None:
    estimated = expected(name, size, fields, **options)
    assert np.abs(estimated - factor * exact()).max() < 1e-8


def test_a_reward_in_an_early_turn_credits_no_later_turn() -> None:
    """With a critic; group estimators credit the whole episode with the sum."""
    early = Episode(0, 1)
    result = estimate("gae", given((early,), values=[np.zeros(5)]), whiten=False)
    assert result.advantages[0].tolist() == [0, 0.25 - 1.0, 0, 0, -1.0]


def test_one_turn_is_credited_as_without_turns() -> None:
    """Bit for bit, whatever the numbers."""
    rng = np.random.default_rng(0)
    masks = [np.arange(n) > 2 for n in (5, 9, 4, 7)]
    scores = rng.normal(size=4)
    turns = [np.zeros(len(mask)) for mask in masks]
    for tokens, score in zip(turns, scores, strict=True):
        tokens[-1] = score
    critic = [rng.normal(size=len(mask)) for mask in masks]
    for name, fields in {"gae": {"values": critic}, "rloo": {}, "grpo": {}}.items():
        plain = AdvantageInput(scores, np.array([0, 0, 1, 1]), masks, **fields)
        turned = AdvantageInput(scores, np.array([0, 0, 1, 1]), masks, turn_rewards=turns, **fields)
        for one, other in zip(
            estimate(name, plain).advantages, estimate(name, turned).advantages, strict=True
        ):
            assert np.array_equal(one, other)


def batch(parts: str, score: float) -> pl.DataFrame:
    rollouts = pl.DataFrame(
        {
            "trajectory_id": ["a"],
            "uid": ["u"],
            "token_ids": [[1, 2, 3, 4, 5, 6]],
            "loss_mask": [[False, True, True, False, True, True]],
            "turn_ends": pl.Series([[3, 6]], dtype=pl.List(pl.Int32)),
            "turn_rewards": [[0.25, 1.0]],
            "valid_actions": [[False, True]],
            "stop_reason": ["done"],
        }
    )
    rewards = pl.DataFrame({"trajectory_id": ["a"], "score": [score], "parts": [parts]})
    return beside(rollouts, rewards)


@pytest.mark.parametrize("is_part", [True, False])
def test_penalty_and_weight_land_on_their_turns_last_token(is_part: bool) -> None:
    parts = json.dumps({"environment": 1.25} if is_part else {"gsm8k": 1.0})
    recipe = load_recipe("text-game-grpo", directory=RECIPES)
    assert recipe.environment is not None
    turned = {"invalid_action_penalty": 0.1}
    recipe = recipe.model_copy(
        update={
            "environment": recipe.environment.model_copy(update=turned),
            "reward": recipe.reward.model_copy(
                update={"functions": [RewardFunction(name="environment", weight=2.0)]}
            ),
        }
    )
    frame = batch(parts, score=2.5)
    turns = turn_credit(frame, recipe)
    assert turns is not None
    weight = 2.0 if is_part else 0.0
    wanted = [0, 0, 0.25 * weight - 0.1, 0, 0, 1.0 * weight]
    assert turns.per_token[0].tolist() == pytest.approx(wanted)
    assert turns.penalties.tolist() == [0.1]
    assert turns.metrics["episode/valid_action_ratio"] == 0.5
    shaped, _ = shaped_scores(frame, recipe, turns)
    assert shaped.tolist() == pytest.approx([2.4])

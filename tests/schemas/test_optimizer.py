"""The optimizer of a section, and what a recipe leaves out of it."""

from typing import Any

import pytest

from schemas.optimizer import Optimizer
from schemas.recipe import SFTSection
from schemas.reward_model import RewardModelSection
from schemas.rl import Critic


def test_part_of_an_optimizer_leaves_the_sections_own_rest_alone() -> None:
    """One key put all others back to those of RL's optimizer: SFT at 1e-6 without its schedule."""
    sft = SFTSection.model_validate({"optimizer": {"weight_decay": 0.1}}).optimizer
    assert (sft.lr, sft.betas, sft.schedule.kind) == (1e-5, (0.9, 0.95), "cosine")
    scorer = RewardModelSection.model_validate({"optimizer": {"schedule": {"min_lr_ratio": 0.1}}})
    assert (scorer.optimizer.lr, scorer.optimizer.schedule.warmup_ratio) == (1e-5, 0.03)
    assert Critic.model_validate({"optimizer": {"weight_decay": 0.0}}).optimizer.lr == 1e-5


@pytest.mark.parametrize(
    "fields",
    [
        {"betas": [1.5, 0.9]},
        {"betas": [0.9, -2]},
        {"lr": float("inf")},
        {"eps": float("nan")},
    ],
)
def test_an_optimizer_has_finite_numbers_in_their_range(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        Optimizer.model_validate(fields)


def test_an_optimizer_that_is_no_mapping_is_left_to_validation() -> None:
    with pytest.raises(ValueError, match="optimizer"):
        Critic.model_validate({"optimizer": "adam"})

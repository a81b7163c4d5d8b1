"""A preset gives way to what a recipe says, key by key."""

import pytest

from schemas.presets import PRESETS, overlay
from schemas.rl import RLSection


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_section_by_itself(name: str) -> None:
    samples = {"samples": 8} if "samples" not in PRESETS[name].get("rollout", {}) else {}
    RLSection.model_validate({"preset": name, "rollout": samples})


def test_mappings_are_merged_and_all_else_is_replaced() -> None:
    base = {"a": {"b": 1, "c": [1, 2]}, "d": 1}
    assert overlay(base, {"a": {"c": [3]}, "d": {"e": 2}}) == {
        "a": {"b": 1, "c": [3]},
        "d": {"e": 2},
    }
    assert overlay(base, {"a": None}) == {"a": None, "d": 1}
    assert base == {"a": {"b": 1, "c": [1, 2]}, "d": 1}, "presets are shared by all recipes"


def test_a_kl_that_moves_leaves_its_coefficient_behind() -> None:
    """The coefficient of a loss means nothing for a reward."""
    base = {"kl": {"where": "loss", "coef": 0.01, "estimator": "k3"}}
    assert overlay(base, {"kl": {"where": "reward"}}) == {"kl": {"where": "reward"}}
    assert overlay(base, {"kl": {"where": "loss"}}) == base
    assert overlay(base, {"kl": {"coef": 0.5}})["kl"] == base["kl"] | {"coef": 0.5}


def test_warm_up_by_ratio_does_away_with_steps_that_would_win() -> None:
    base = {"schedule": {"warmup_steps": 320, "kind": "cosine"}}
    found = overlay(base, {"schedule": {"warmup_ratio": 0.05}})
    assert found == {"schedule": {"kind": "cosine", "warmup_ratio": 0.05}}
    both = {"schedule": {"warmup_ratio": 0.05, "warmup_steps": 7}}
    assert overlay(base, both)["schedule"]["warmup_steps"] == 7

"""Settings of the RL stage that a recipe leaves out, or names in part."""

import pytest

from schemas.rl import RewardFunction, RewardSection, RLSection


def test_warm_up_by_ratio_replaces_the_presets_steps() -> None:
    """DAPO's 320 steps won over a ratio that a recipe asked for, without a word."""
    schedule = {"update": {"optimizer": {"schedule": {"warmup_ratio": 0.05}}}}
    found = RLSection.model_validate({"preset": "dapo", **schedule}).update.optimizer.schedule
    assert (found.warmup_steps, found.warmup_ratio) == (None, 0.05)


def test_what_a_recipe_says_wins_over_its_preset_and_the_rest_stays() -> None:
    section = RLSection.model_validate(
        {"preset": "dapo", "algorithm": {"clip_high": 0.3}, "rollout": {"samples": 4}}
    )
    preset = RLSection.model_validate({"preset": "dapo"})
    assert (section.algorithm.clip_high, section.rollout.samples) == (0.3, 4)
    assert section.algorithm.dynamic_sampling == preset.algorithm.dynamic_sampling
    assert section.rollout.prompts == preset.rollout.prompts


def test_an_adaptive_coefficient_of_kl_stays_positive() -> None:
    """A penalty that is negative pays the policy for leaving the reference."""
    kl = {"where": "reward", "controller": "adaptive"}
    values = {"preset": "ppo-instructgpt", "rollout": {"prompts": 64, "samples": 8}}
    for horizon, fits in ((102, False), (103, True)):
        values["algorithm"] = {"kl": {**kl, "horizon": horizon}}
        if fits:
            assert RLSection.model_validate(values).algorithm.kl.horizon == horizon
        else:
            with pytest.raises(ValueError, match=r"kl\.horizon = 102 .* at least 103"):
                RLSection.model_validate(values)


def test_iterations_that_warm_the_critic_up_do_not_train_the_policy() -> None:
    section = RLSection.model_validate({"preset": "vapo", "iterations": 116})
    assert section.actor_iterations == 66
    assert RLSection.model_validate({"preset": "grpo", "iterations": 116}).actor_iterations == 116


def test_a_reward_of_weight_zero_alone_teaches_nothing() -> None:
    judge = RewardFunction(name="gsm8k", weight=0)
    with pytest.raises(ValueError, match="every weight of functions is 0"):
        RewardSection(functions=(judge,))
    RewardSection(functions=(judge, RewardFunction(name="arithmetic", weight=-1)))


def test_who_claims_equal_bits_cannot_let_time_decide_on_batches() -> None:
    streaming = {"rollout": {"schedule": "streaming"}}
    with pytest.raises(ValueError, match=r"set rollout\.schedule to lockstep, or leave"):
        RLSection.model_validate({"full_determinism": True, **streaming})
    assert RLSection.model_validate(streaming).rollout.schedule == "streaming"
    assert RLSection.model_validate({"full_determinism": True}).full_determinism


def test_no_number_of_a_reward_is_without_end() -> None:
    """It is in no JSON, so that no cache key can hold it."""
    function = {"name": "gsm8k"}
    for fields in (
        {"functions": [function], "offset": float("nan")},
        {"functions": [function | {"weight": float("inf")}]},
        {"functions": [function | {"options": {"a": [{"b": float("-inf")}]}}]},
    ):
        with pytest.raises(ValueError, match="finite"):
            RewardSection.model_validate(fields)

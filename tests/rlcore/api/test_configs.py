"""Configs: names and defaults of StateSet's guide, errors in one sentence, the resulting recipe."""

from typing import Any

import pytest

from rlcore.api.configs import (
    DAPOConfig,
    GEPOConfig,
    GRPOConfig,
    GSPOConfig,
    PPOConfig,
    ReMaxConfig,
    RLOOConfig,
    TrainingConfig,
    VAPOConfig,
)
from schemas.errors import UserError
from schemas.presets import PRESETS
from schemas.rl import RLSection
from tests.rlcore.api.tiny import recipe

CONFIGS = (
    *(GRPOConfig, PPOConfig, DAPOConfig, RLOOConfig),
    *(GSPOConfig, GEPOConfig, VAPOConfig, ReMaxConfig),
)
# Every row of the tables of key parameters in StateSet's guide.
GUIDE_DEFAULTS: dict[type[TrainingConfig], dict[str, Any]] = {
    GEPOConfig: {"group_size": 8, "clip_eps": 0.2, "learning_rate": 1e-6, "warmup_ratio": 0.03},
    DAPOConfig: {
        "clip_eps_low": 0.2,
        "clip_eps_high": 0.28,
        "group_size": 16,
        "use_dynamic_sampling": True,
        "use_overlong_shaping": True,
        "max_generation_length": 20480,
        "overlong_cache_length": 4096,
    },
    VAPOConfig: {
        "value_warmup_steps": 50,
        "lambda_critic": 1.0,
        "lambda_policy_alpha": 0.05,
        "actor_learning_rate": 1e-6,
        "critic_learning_rate": 2e-6,
        "use_positive_lm_loss": True,
        "positive_lm_weight": 0.1,
        "clip_eps_low": 0.2,
        "clip_eps_high": 0.28,
    },
}


@pytest.mark.parametrize("config_type", list(GUIDE_DEFAULTS))
def test_the_defaults_are_those_of_the_guides_tables(config_type: type[TrainingConfig]) -> None:
    values = config_type().model_dump()
    assert GUIDE_DEFAULTS[config_type].items() <= values.items()


@pytest.mark.parametrize("config_type", CONFIGS)
def test_a_config_of_defaults_is_its_preset(config_type: type[TrainingConfig]) -> None:
    """A default that differs from the preset would be a second truth about the algorithm."""
    made = recipe(config_type()).rl
    preset = config_type.preset
    warmup = PRESETS[preset].get("critic", {}).get("warmup_iterations", 0)
    expected = RLSection(preset=preset, iterations=made.iterations)
    algorithm = expected.algorithm
    if preset == "dapo":
        assert made.algorithm.overlong is not None
        assert (made.algorithm.overlong.max_tokens, made.algorithm.overlong.cache_tokens) == (
            20480,
            4096,
        )
        algorithm = algorithm.model_copy(
            update={
                "overlong": made.algorithm.overlong,
                "dynamic_sampling": made.algorithm.dynamic_sampling,
            }
        )
    assert made.algorithm == algorithm
    assert made.rollout.model_copy(update={"max_new_tokens": 0}) == expected.rollout.model_copy(
        update={"max_new_tokens": 0}
    )
    assert made.update == expected.update
    assert made.critic == expected.critic
    assert made.iterations == 1024 // made.rollout.prompts + warmup
    assert (made.rollout.temperature, made.rollout.top_p) == (1.0, 1.0)
    assert made.algorithm.gae.gamma == 1.0


def test_every_common_name_reaches_the_recipe() -> None:
    """StateSet's configs hold fields that nothing reads."""
    made = recipe(
        GRPOConfig(
            seed=5,
            num_episodes=7,
            num_prompts_per_batch=12,
            num_gradient_updates=3,
            ppo_epochs=2,
            group_size=4,
            temperature=0.9,
            max_prompt_length=200,
            max_completion_length=300,
            max_error_fraction=0.5,
            max_timeout_fraction=0.25,
            reward_timeout_s=3,
            gradient_checkpointing=True,
            overrides={"rl.algorithm.entropy_coef": 0.01},
        )
    )
    rl = made.rl
    batch = (rl.rollout.prompts, rl.rollout.samples, rl.update.mini_batches, rl.update.epochs)
    lengths = (made.data.max_prompt_tokens, rl.rollout.max_new_tokens, made.model.max_tokens)
    assert (made.seed, rl.iterations, batch, lengths) == (5, 7, (12, 4, 3, 2), (200, 300, 500))
    assert rl.rollout.temperature == 0.9
    assert (made.reward.max_error_fraction, made.reward.timeout_s) == (0.5, 3.0)
    assert made.reward.max_timeout_fraction == 0.25
    assert made.hardware.learner.gradient_checkpointing
    assert rl.algorithm.entropy_coef == 0.01


def test_every_name_of_vapo_reaches_the_recipe() -> None:
    rl = recipe(
        VAPOConfig(
            num_episodes=7,
            value_warmup_steps=2,
            lambda_critic=0.9,
            lambda_policy_alpha=0.1,
            actor_learning_rate=1e-4,
            critic_learning_rate=2e-4,
            warmup_ratio=0.5,
            clip_eps_low=0.1,
            clip_eps_high=0.3,
            positive_lm_weight=0.7,
        )
    ).rl
    critic, algorithm = rl.critic, rl.algorithm
    assert critic is not None
    assert (rl.iterations, critic.warmup_iterations) == (9, 2)
    assert (algorithm.gae.lam_critic, algorithm.gae.length_adaptive_alpha) == (0.9, 0.1)
    assert (rl.update.optimizer.lr, critic.optimizer.lr) == (1e-4, 2e-4)
    assert rl.update.optimizer.schedule.warmup_ratio == 0.5
    assert (algorithm.clip_low, algorithm.clip_high) == (0.1, 0.3)
    assert algorithm.positive_nll.coef == 0.7


def test_switches_switch() -> None:
    off = recipe(DAPOConfig(use_dynamic_sampling=False, use_overlong_shaping=False)).rl.algorithm
    assert off.dynamic_sampling is None
    assert off.overlong is None
    assert recipe(VAPOConfig(use_positive_lm_loss=False)).rl.algorithm.positive_nll.coef == 0
    assert recipe(GRPOConfig(beta=0)).rl.algorithm.kl.where == "none"
    assert recipe(GRPOConfig(beta=0.2)).rl.algorithm.kl.coef == 0.2
    ppo = recipe(PPOConfig(gamma=0.9, gae_lambda=0.8, beta=0.5, clip_eps=0.1)).rl.algorithm
    assert (ppo.gae.gamma, ppo.gae.lam, ppo.kl.where, ppo.kl.coef) == (0.9, 0.8, "reward", 0.5)
    assert (ppo.clip_low, ppo.clip_high) == (0.1, 0.1)
    dapo = recipe(DAPOConfig()).rl
    assert dapo.update.optimizer.schedule.warmup_steps == 20 * dapo.update.mini_batches


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"max_generation_length": 20480, "max_completion_length": 512},
            "responses end at 512 tokens, so overlong shaping could never act",
        ),
        ({"overlong_cache_length": 30000}, "exceeds max_generation_length = 20480"),
        ({"max_generation_length": 100, "overlong_cache_length": 101}, "exceeds"),
        ({"group_size": 1}, "leaves a response nothing to be compared with"),
    ],
)
def test_contradictions_are_refused_when_written(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        DAPOConfig(**values)


@pytest.mark.parametrize(
    ("config_type", "values", "sentence"),
    [
        (
            GEPOConfig,
            {"group_sise": 8},
            "GEPOConfig.group_sise is not a setting; did you mean 'group",
        ),
        (DAPOConfig, {"clip_eps_hihg": 0.3}, "did you mean 'clip_eps_high'"),
        (VAPOConfig, {"learning_rate": 1e-6}, "did you mean '(actor|critic)_learning_rate'"),
        (
            GRPOConfig,
            {"top_p": 0.9},
            "GRPOConfig.top_p is not a setting.*there are beta, checkpoint_every, clip_eps",
        ),
        (GRPOConfig, {"group_size": "many"}, "GRPOConfig.group_size = 'many' is refused"),
        (GRPOConfig, {"clip_eps": 1.5}, "GRPOConfig.clip_eps = 1.5 is refused: .* less than 1"),
    ],
)
def test_wrong_names_and_values_are_reported_in_one_sentence(
    config_type: type[TrainingConfig], values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        config_type(**values)
    assert "\n" not in str(caught.value)


def test_a_length_of_none_is_the_room_of_the_context() -> None:
    config = GRPOConfig(max_completion_length=None)
    assert config.lengths(100) == (100, {})
    with pytest.raises(UserError, match="= None and the model names no context; give a number"):
        config.lengths(None)


def test_a_config_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        GRPOConfig().seed = 3  # pyright: ignore[reportAttributeAccessIssue]

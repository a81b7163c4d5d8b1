"""Episodes of several turns: verl's ``multi_turn`` and AlphaApollo's ``env`` as our section."""

from pathlib import Path

import pytest

from rlcore.recipes.load import load_recipe
from rlcore.verl.translate import Translation, render, translate

AGENT = """
python3 -m verl.trainer.main_ppo \\
algorithm.adv_estimator=grpo \\
data.train_files=data/math/train.parquet data.val_files=data/math/test.parquet \\
data.train_batch_size=16 data.max_prompt_length=1024 data.max_response_length=512 \\
actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B-Instruct \\
actor_rollout_ref.actor.use_kl_loss=True \\
actor_rollout_ref.actor.kl_loss_coef=0.01 \\
actor_rollout_ref.actor.kl_loss_type=low_var_kl \\
actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \\
actor_rollout_ref.actor.use_invalid_action_penalty=True \\
actor_rollout_ref.actor.invalid_action_penalty_coef=0.2 \\
env.env_name=informal_math_training env.seed=0 env.max_steps=3 env.history_length=2 \\
env.rollout.n=8 trainer.total_epochs=1 trainer.n_gpus_per_node=2
"""
TURNS = "actor_rollout_ref.rollout.multi_turn"


def test_an_agent_command_becomes_a_recipe_that_loads(tmp_path: Path) -> None:
    """S0's agent run could not be moved here."""
    translation = translate(AGENT)
    recipe = translation.recipe
    environment = recipe.environment
    assert environment is not None
    assert (environment.name, environment.turns) == ("python", 3)
    assert environment.invalid_action_penalty == 0.2
    assert recipe.rl.rollout.samples == 8
    assert recipe.rl.rollout.max_new_tokens == 512
    longest = 1024 + 3 * 512 + 2 * environment.observation
    assert recipe.model.max_tokens == longest
    assert recipe.hardware.learner.micro_batch_tokens == longest
    (differs,) = [note for note in translation.notes.differs if "history_length" in note]
    assert "the policy sees all earlier turns" in differs
    file = tmp_path / "agent.yaml"
    file.write_text(render(translation))
    assert load_recipe(str(file), directory=tmp_path).environment == environment


def _differs(translation: Translation) -> str:
    assert translation.recipe.environment is None
    return " ".join(translation.notes.differs)


def test_an_environment_that_we_do_not_have_is_told_how_to_write() -> None:
    told = _differs(translate(AGENT.replace("informal_math_training", "alfworld/AlfredTWEnv")))
    assert "env.env_name = alfworld/AlfredTWEnv: there is no such environment here" in told
    assert (
        "environment: {name: 'package.module:Class', max_turns: 3, invalid_action_penalty: 0.2}"
        in told
    )


def _verl(*settings: str) -> Translation:
    return translate("\n".join(["...", f"{TURNS}.enable=True", *settings]))


def test_verls_tools_are_the_sandbox_or_told_how_to_write() -> None:
    translation = _verl(
        f"{TURNS}.tool_config_path=recipe/retool/sandbox_fusion_tool_config.yaml",
        f"{TURNS}.max_assistant_turns=8",
        f"{TURNS}.max_tool_response_length=1000",
        f"{TURNS}.format=qwen3_coder",
    )
    environment = translation.recipe.environment
    assert environment is not None
    assert (environment.name, environment.turns) == ("python", 8)
    assert environment.max_observation_tokens == 250
    assert environment.invalid_action_penalty == 0
    assert "max_tool_response_length = 1000 is in characters" in " ".join(translation.notes.remarks)
    assert "read in the form of Hermes only" in " ".join(translation.notes.differs)
    told = _differs(_verl(f"{TURNS}.tool_config_path=tools/shop.yaml", f"{TURNS}.max_turns=2"))
    assert "the tools of tools/shop.yaml are not read" in told
    assert "max_turns: 2" in told


@pytest.mark.parametrize("setting", [f"{TURNS}.enable=False", f"{TURNS}.max_assistant_turns=4"])
def test_turns_that_are_off_change_nothing(setting: str) -> None:
    translation = translate(f"...\n{setting}")
    assert translation.recipe == translate("...\ntrainer.nnodes=1").recipe
    assert not translation.notes.differs

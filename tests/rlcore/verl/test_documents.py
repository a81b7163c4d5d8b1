"""Every command line and config block of two public pages becomes a recipe that validates.

The pages are AlphaApollo's RL training page and verl's PPO-on-one-GPU example; the text is typed
in as it is there.
"""

from typing import Any

import pytest

from rlcore.recipes.load import load_recipe
from rlcore.verl.translate import Translation, render, translate
from schemas.errors import UserError

ALPHAAPOLLO_PPO = r"""
python3 -m verl.trainer.main_ppo \
algorithm.adv_estimator=gae \
algorithm.gamma=1.0 \
algorithm.lam=1.0 \
actor_rollout_ref.rollout.n=1 \
...
"""
ALPHAAPOLLO_GRPO = r"""
python3 -m verl.trainer.main_ppo \
algorithm.adv_estimator=grpo \
actor_rollout_ref.actor.use_kl_loss=True \
actor_rollout_ref.actor.kl_loss_coef=0.01 \
actor_rollout_ref.actor.kl_loss_type=low_var_kl \
env.rollout.n=8 \
...
"""
ALPHAAPOLLO_DAPO = r"""
python3 -m verl.trainer.main_ppo \
algorithm.adv_estimator=grpo \
algorithm.filter_groups.enable=True \
algorithm.filter_groups.max_num_gen_batches=10 \
...
"""
ALPHAAPOLLO_RLOO = r"""
python3 -m verl.trainer.main_ppo \
algorithm.adv_estimator=rloo \
env.rollout.n=8 \
...
"""
ALPHAAPOLLO_OPTIMISATION = """
actor_rollout_ref.actor.optim.lr=1e-6
actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1
actor_rollout_ref.actor.optim.warmup_style=cosine # or constant
actor_rollout_ref.actor.optim.weight_decay=0.01
actor_rollout_ref.actor.grad_clip=1.0
"""
ALPHAAPOLLO_KL_LOSS = """
# Option 1: KL loss in the actor objective (recommended for GRPO)
actor_rollout_ref.actor.use_kl_loss=True
actor_rollout_ref.actor.kl_loss_coef=0.01
actor_rollout_ref.actor.kl_loss_type=low_var_kl
"""
ALPHAAPOLLO_KL_REWARD = """
# Option 2: KL penalty in the reward
algorithm.use_kl_in_reward=True
algorithm.kl_ctrl.type=fixed
algorithm.kl_ctrl.kl_coef=0.001
"""
ALPHAAPOLLO_INVALID_ACTION = """
actor_rollout_ref.actor.use_invalid_action_penalty=True
actor_rollout_ref.actor.invalid_action_penalty_coef=0.1
"""
ALPHAAPOLLO_ONE_NODE = """
# Single node, 2 GPUs
trainer.n_gpus_per_node=2 trainer.nnodes=1
"""
ALPHAAPOLLO_NODES = """
# Multi-node (4 nodes, 8 GPUs each)
trainer.n_gpus_per_node=8 trainer.nnodes=4
"""
ALPHAAPOLLO_PARALLEL = """
# Tensor parallelism for rollout
actor_rollout_ref.rollout.tensor_model_parallel_size=2
# Sequence parallelism for training
actor_rollout_ref.actor.ulysses_sequence_parallel_size=2
# FSDP offloading (trade speed for memory)
actor_rollout_ref.actor.fsdp_config.param_offload=True
actor_rollout_ref.actor.fsdp_config.optimizer_offload=True
actor_rollout_ref.ref.fsdp_config.param_offload=True # recommended for ref model >7B
"""
VERL_ONE_GPU = """
train_batch_size: 64
max_prompt_length: 512
max_response_length: 512
actor.optim.lr: 1e-6
actor.ppo_mini_batch_size: 32
actor.ppo_micro_batch_size_per_gpu: 4
critic.optim.lr: 1e-5
algorithm.kl_ctrl.kl_coef: 0.001
rollout.gpu_memory_utilization: 0.75
total_epochs: 1
"""

# text -> expected in the recipe, by dotted path
EXPECTED: dict[str, dict[str, Any]] = {
    ALPHAAPOLLO_PPO: {
        "rl.preset": "ppo",
        "rl.algorithm.advantage": "gae",
        "rl.algorithm.gae.lam": 1.0,
        "rl.algorithm.clip_dual": 3.0,
        "rl.algorithm.kl.where": "none",
        "rl.rollout.samples": 1,
        "rl.critic.optimizer.lr": 1e-5,
    },
    ALPHAAPOLLO_GRPO: {
        "rl.algorithm.advantage": "grpo",
        "rl.algorithm.aggregation": "token-mean",
        "rl.algorithm.kl.where": "loss",
        "rl.algorithm.kl.estimator": "k3",
        "rl.algorithm.kl.coef": 0.01,
        "rl.rollout.samples": 8,
        "rl.critic": None,
    },
    ALPHAAPOLLO_DAPO: {
        "rl.algorithm.dynamic_sampling.metric": "score",
        "rl.algorithm.dynamic_sampling.max_rounds": 10,
        "rl.algorithm.dynamic_sampling.batch_factor": 1,
        "rl.algorithm.overlong": None,
        "rl.algorithm.clip_high": 0.2,
        "rl.rollout.samples": 8,
    },
    ALPHAAPOLLO_RLOO: {
        "rl.algorithm.advantage": "rloo",
        "rl.algorithm.kl.where": "none",
        "rl.rollout.samples": 8,
    },
    ALPHAAPOLLO_OPTIMISATION: {
        "rl.update.optimizer.lr": 1e-6,
        "rl.update.optimizer.weight_decay": 0.01,
        "rl.update.optimizer.grad_clip": 1.0,
        "rl.update.optimizer.schedule.kind": "cosine",
        "rl.update.optimizer.schedule.warmup_ratio": 0.1,
    },
    ALPHAAPOLLO_KL_LOSS: {"rl.algorithm.kl.where": "loss", "rl.algorithm.kl.coef": 0.01},
    ALPHAAPOLLO_KL_REWARD: {
        "rl.algorithm.kl.where": "reward",
        "rl.algorithm.kl.estimator": "k1",
        "rl.algorithm.kl.controller": "fixed",
        "rl.algorithm.kl.coef": 0.001,
    },
    ALPHAAPOLLO_INVALID_ACTION: {"rl.preset": "ppo"},
    ALPHAAPOLLO_ONE_NODE: {
        "hardware.learner.ranks": 1,
        "hardware.rollout.engines": 1,
        "hardware.rollout.gpus_per_engine": 1,
    },
    ALPHAAPOLLO_NODES: {
        "hardware.learner.ranks": 8,  # and as many of the critic
        "hardware.rollout.engines": 16,
        "hardware.learner.zero_stage": 2,
    },
    ALPHAAPOLLO_PARALLEL: {
        "hardware.rollout.tensor_parallel": 2,
        "hardware.rollout.gpus_per_engine": 2,
        "hardware.learner.sequence_parallel": 2,
        "hardware.learner.offload_reference": True,
        "hardware.learner.offload_params": True,
        "hardware.learner.offload_optimizer": True,
        "hardware.learner.zero_stage": 3,
    },
    VERL_ONE_GPU: {
        "model.path": "Qwen/Qwen2.5-0.5B-Instruct",
        "model.max_tokens": 1024,
        "rl.preset": "ppo",
        "rl.iterations": 116,
        "rl.rollout.prompts": 64,
        "rl.rollout.max_new_tokens": 512,
        "rl.update.mini_batches": 2,
        "rl.update.optimizer.lr": 1e-6,
        "rl.critic.optimizer.lr": 1e-5,
        "rl.critic.clip": 0.5,
        "rl.algorithm.kl.where": "reward",
        "rl.algorithm.kl.coef": 0.001,
        "hardware.learner.micro_batch_tokens": 4096,
        "hardware.rollout.gpu_memory_utilization": 0.4,
        "hardware.rollout.sleep": True,
    },
}


def at(translation: Translation, path: str) -> Any:
    """Return the value of the resolved recipe at a dotted path."""
    node: Any = translation.recipe.model_dump()
    for part in path.split("."):
        node = node[part]
    return node


@pytest.mark.parametrize("text", EXPECTED)
def test_each_block_becomes_the_expected_settings(text: str, tmp_path: Any) -> None:
    translation = translate(text)
    assert {path: at(translation, path) for path in EXPECTED[text]} == EXPECTED[text]
    file = tmp_path / "translated.yaml"
    file.write_text(render(translation))
    assert load_recipe(str(file), directory=tmp_path) == translation.recipe, (
        "YAML reads back differently"
    )


def test_a_penalty_without_an_environment_is_named() -> None:
    remarks = " ".join(translate(ALPHAAPOLLO_INVALID_ACTION).notes.remarks)
    assert "use_invalid_action_penalty is left out: the run has no environment" in remarks
    assert "invalid_action_penalty_coef is left out: the run has no environment" in remarks


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("python3 -m examples.data_preprocess.prepare_informal_math \\\n--data_source x/MATH",
         r"data\.sources of a recipe \(MATH: kind math; "),
        ("python3 -m examples.data_preprocess.prepare \\\n--mode 'text' \\\n--train_data_size 16",
         "kind environment with train_size and validation_size"),
        ("python3 -m verl.model_merger merge --backend fsdp", "every run ends with its model in"),
        ("python3 -m verl.trainer.fsdp_sft_trainer data.x=1", "SFT is the section sft"),
        ("python3 -m http.server", "is not verl's trainer"),
    ],
)  # fmt: skip
def test_commands_that_do_not_train_are_refused_with_the_replacement(
    command: str, remedy: str
) -> None:
    with pytest.raises(UserError, match=remedy):
        translate(command)

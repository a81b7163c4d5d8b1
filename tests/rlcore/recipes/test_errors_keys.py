"""Who knows another library's name for a setting is told ours, first and at whatever place."""

import re
from typing import Any

import pytest

from flows.paths import RECIPES
from flows.reference import REFERENCE
from rlcore.recipes.errors import hint, recipe_keys, unknown_leaves
from rlcore.recipes.foreign_keys import ABSENT, KEYS, SECTIONS, by_name
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from schemas.recipe import Recipe
from tests.rlcore.like_names import LIKE

LR = "rl.update.optimizer.lr"
MEANT = {
    # TRL
    "rl.num_generations": "rl.rollout.samples",
    "rl.rollout.num_generations": "rl.rollout.samples",
    "grpo.num_generations": "rl.rollout.samples",
    "rl.num_iterations": "rl.update.epochs",
    "rl.epsilon": "rl.algorithm.clip_low",
    "rl.algorithm.epsilon_high": "rl.algorithm.clip_high",
    "rl.beta": "rl.algorithm.kl.coef",
    "max_completion_length": "rl.rollout.max_new_tokens",
    "evaluate.max_completion_length": "evaluate.max_new_tokens",
    "rl.max_prompt_length": "data.max_prompt_tokens",
    "rl.per_device_train_batch_size": "hardware.learner.micro_batch_tokens",
    "sft.per_device_train_batch_size": "sft.batch_size",
    "gradient_accumulation_steps": "hardware.learner.micro_batch_tokens",
    "rl.loss_type": "rl.algorithm.aggregation",
    "rl.scale_rewards": "rl.algorithm.norm_by_std",
    "learning_rate": LR,
    "sft.learning_rate": "sft.optimizer.lr",
    "rl.critic.learning_rate": "rl.critic.optimizer.lr",
    "rl.max_grad_norm": "rl.update.optimizer.grad_clip",
    "num_train_epochs": "rl.iterations",
    "sft.num_train_epochs": "sft.epochs",
    "rl.mask_truncated_completions": "rl.algorithm.mask_truncated",
    "sft.lr_scheduler_type": "sft.optimizer.schedule.kind",
    "model.model_name_or_path": "model.path",
    "use_vllm": "hardware.rollout.engine",
    "rl.vllm_gpu_memory_utilization": "hardware.rollout.gpu_memory_utilization",
    "save_steps": "rl.checkpoint.every",
    "sft.save_steps": "sft.checkpoint_every",
    "bf16": "model.dtype",
    "reward_funcs": "reward.functions",
    "reward.functions.0.fn": "reward.functions.0.name",
    "importance_sampling_level": "rl.algorithm.ratio_level",
    "rl.vllm_importance_sampling_clip_max": "rl.algorithm.importance_correction.cap",
    # verl
    "actor_rollout_ref.rollout.n": "rl.rollout.samples",
    "actor_rollout_ref.rollout.temperature": "rl.rollout.temperature",
    "actor_rollout_ref.rollout.val_kwargs.temperature": "evaluate.temperature",
    "actor_rollout_ref.actor.optim.lr": LR,
    "critic.optim.lr": "rl.critic.optimizer.lr",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "rl.update.mini_batches",
    "rl.kl_coef": "rl.algorithm.kl.coef",
    "algorithm.kl_ctrl.kl_coef": "rl.algorithm.kl.coef",
    "rl.algorithm.clip_ratio": "rl.algorithm.clip_low",
    "actor_rollout_ref.actor.clip_ratio_high": "rl.algorithm.clip_high",
    "algorithm.adv_estimator": "rl.algorithm.advantage",
    "algorithm.gamma": "rl.algorithm.gae.gamma",
    "data.train_batch_size": "rl.rollout.prompts",
    "data.max_response_length": "rl.rollout.max_new_tokens",
    "data.train_files": "data.sources",
    "trainer.total_epochs": "rl.iterations",
    "trainer.test_freq": "rl.validation.every",
    "trainer.n_gpus_per_node": "hardware.learner.ranks",
    "actor_rollout_ref.model.path": "model.path",
    "actor_rollout_ref.actor.use_kl_loss": "rl.algorithm.kl.where",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "hardware.rollout.tensor_parallel",
    "algorithm.filter_groups.enable": "rl.algorithm.dynamic_sampling",
    "algorithm.rollout_correction.rollout_rs": "rl.algorithm.importance_correction.reject",
    "algorithm.rollout_correction.bypass_mode": "rl.update.old_logprobs",
    # OpenRLHF
    "n_samples_per_prompt": "rl.rollout.samples",
    "init_kl_coef": "rl.algorithm.kl.coef",
    "micro_train_batch_size": "hardware.learner.micro_batch_tokens",
    "rollout_batch_size": "rl.rollout.prompts",
    "generate_max_len": "rl.rollout.max_new_tokens",
    "prompt_max_len": "data.max_prompt_tokens",
    "actor_learning_rate": LR,
    "critic_learning_rate": "rl.critic.optimizer.lr",
    "eps_clip": "rl.algorithm.clip_low",
    "lambd": "rl.algorithm.gae.lam",
    "l2": "rl.update.optimizer.weight_decay",
    "adam_offload": "hardware.learner.offload_optimizer",
    "vllm_num_engines": "hardware.rollout.engines",
    "advantage_estimator": "rl.algorithm.advantage",
    "pretrain": "model.path",
    "input_key": "data.sources.0.columns",
    # environments
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": "environment.max_turns",
    "actor_rollout_ref.rollout.multi_turn.tool_config_path": "environment.name",
    "max_tool_calling_iterations": "environment.max_turns",
    "max_turns": "environment.max_turns",
    "rl.env_name": "environment.name",
    # leaf names
    "rl.lr": LR,
    "lr": LR,
    "rl.batch_size": "rl.rollout.prompts",
    "batch_size": "rl.rollout.prompts",
    "temperature": "rl.rollout.temperature",
    "rl.temperature": "rl.rollout.temperature",
    "eval.temperature": "evaluate.temperature",
    "rl.seed": "seed",
    "rl.epochs": "rl.update.epochs",
    "max_steps": "rl.iterations",
    "rl.max_steps": "rl.iterations",
    "rl.max_tokens": "rl.rollout.max_new_tokens",
    "samples": "rl.rollout.samples",
    "rl.samples": "rl.rollout.samples",
    "rl.weight_decay": "rl.update.optimizer.weight_decay",
    "iterations": "rl.iterations",
    "clip_high": "rl.algorithm.clip_high",
    "dtype": "model.dtype",
    "sft.lr": "sft.optimizer.lr",
    "gpu_memory_utilization": "hardware.rollout.gpu_memory_utilization",
    "rl.Learning-Rate": LR,
    # slips of the hand
    "rl.iteratons": "iterations",  # of the same section
    "rl.rollout.promts": "prompts",
    "rl.num_generation": "rl.rollout.samples",
    "rl.learning_rte": LR,
}


@pytest.fixture(scope="module")
def refusals() -> dict[str, str]:
    """The sentence on each of those keys, of one recipe that holds them all."""
    with pytest.raises(UserError) as refusal:
        load_recipe("quickstart", dict.fromkeys(MEANT, 1), directory=RECIPES)
    lines = [line.removeprefix("recipe 'quickstart': ") for line in str(refusal.value).split("\n")]
    return {line.partition(" is not a known key")[0]: line for line in lines}


@pytest.mark.parametrize(("written", "meant"), MEANT.items())
def test_the_right_key_is_named_first(refusals: dict[str, str], written: str, meant: str) -> None:
    assert f" is not a known key; did you mean '{meant}'?" in refusals[written]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("model.lora_dropout", "an adapter has no dropout"),
        ("model.use_dora", "an adapter begins at zero and is not weight-decomposed"),
        ("rl.rollout.min_p", "the whole distribution"),
        ("resume_from_checkpoint", "continues where it was"),
        ("off_policy_mask_threshold", r"set rl\.algorithm\.importance_correction\.reject"),
        ("data.sources.0.hub_split", "it is a key of kind 'hub'"),
        ("data.sources.0.path", "it is a key of kind 'gsm8k' or 'math' or 'aime' or 'file'"),
    ],
)
def test_what_has_no_counterpart_there_is_told_so(written: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_recipe("quickstart", {written: 1}, directory=RECIPES)


def test_the_tables_name_keys_that_exist() -> None:
    """A hint that leads to the next error is worse than none."""
    known = {key for keys in recipe_keys().values() for key in keys}
    for name, keys in KEYS.items():
        assert set(keys) <= known, name
    assert not KEYS.keys() & ABSENT.keys()
    assert set(SECTIONS.values()) <= recipe_keys().keys()
    assert len(KEYS) + len(by_name(LIKE)) > 1000


@pytest.mark.parametrize(("written", "meant"), by_name(LIKE).items())
def test_a_name_like_another_means_what_that_means(written: str, meant: str) -> None:
    found = hint(written.split("."), list(Recipe.model_fields))
    assert meant in (found.key, found.text.removeprefix("; "))


def test_a_section_of_another_name_is_one_error_and_a_foreign_one_is_one_per_key() -> None:
    assert list(unknown_leaves(("rl", "optimizer"), {"lr": 1, "betas": 2})) == [("rl", "optimizer")]
    foreign = {"actor": {"optim": {"lr": 1}}, "rollout": {"n": 8}}
    assert list(unknown_leaves(("actor_rollout_ref",), foreign)) == [
        ("actor_rollout_ref", "actor", "optim", "lr"),
        ("actor_rollout_ref", "rollout", "n"),
    ]
    assert hint(("rl", "zzzzz"), ["iterations"]).text == ""


def test_an_error_ends_with_the_place_of_its_section_in_the_reference(
    refusals: dict[str, str],
) -> None:
    headings = re.findall(r"(?m)^#+ (.+)$", REFERENCE.read_text(encoding="utf-8"))
    anchors = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}
    for line in refusals.values():
        anchor = re.fullmatch(r".* \(docs/reference/recipe\.md#([\w-]+)\)", line)
        assert anchor, line
        assert anchor[1] in anchors, line
    assert refusals["rl.iteratons"].endswith("recipe.md#rl)")
    assert refusals["rl.num_generation"].endswith("recipe.md#rlrollout)")


@pytest.mark.parametrize(
    ("overrides", "anchor"),
    [
        ({"model.max_tokens": 64}, "data"),  # a rule between sections: the first key that it names
        ({"evaluate.checkpoints": ["sft"]}, "evaluate"),
        ({"rl.critic.init": "policy"}, "rl"),  # a rule of a section
        ({"model.adapter.rank": 0}, "modeladapter"),
    ],
)
def test_so_does_a_rule_between_sections(overrides: dict[str, Any], anchor: str) -> None:
    with pytest.raises(UserError) as refused:
        load_recipe("quickstart", overrides, directory=RECIPES)
    for line in str(refused.value).splitlines():
        assert line.endswith(f"(docs/reference/recipe.md#{anchor})")

"""A config lists every setting of verl's, at its new place too; none of its defaults misleads."""

import pytest

from rlcore.verl.translate import translate
from schemas.errors import UserError

GRPO = "algorithm.adv_estimator=grpo"

RESOLVED = """
actor_rollout_ref:
  actor: {strategy: fsdp, optim: {lr: 1.0e-06, warmup_style: null}, tau_pos: 1.0,
    checkpoint: {save_contents: [model]}, qat: {enable: false, ignore_patterns: [lm_head]}}
  model: {path: Qwen/Qwen2.5-0.5B, lora_rank: 0, mtp: {enable: false, method: mtp}}
  rollout: {name: "???", n: 5, mtp: "${oc.select:actor_rollout_ref.model.mtp, null}",
    qat: "${oc.select:actor_rollout_ref.actor.x,${oc.select:actor_rollout_ref.actor.y,null}}"}
algorithm:
  adv_estimator: grpo
  rollout_correction: {rollout_is: null, rollout_is_threshold: 2.0, loss_type: ppo_clip}
  pf_ppo: {reweight_method: pow}
custom_reward_function: {path: null, name: null}
data: {train_files: gsm8k/train.parquet, val_files: gsm8k/test.parquet, image_key: images,
  train_batch_size: 64, shuffle: true, apply_chat_template_kwargs: {}}
distillation: {enabled: false, teacher_key: data_source}
reward: {num_workers: 8, custom_reward_function: {path: null, name: compute_score}}
trainer: {device: cuda, total_epochs: 1, v1: {trainer_mode: sync}}
"""


def test_hydras_resolved_config_becomes_a_recipe_in_which_nothing_differs() -> None:
    """It lists every default of verl's; one that switched something on would change the run."""
    translation = translate(RESOLVED)
    assert translation.notes.differs == []
    recipe = translation.recipe
    assert recipe.rl.algorithm.importance_correction.level == "none"
    assert (recipe.rl.rollout.samples, recipe.rl.iterations) == (5, 7473 // 64)
    assert recipe.hardware.device == "auto"
    assert recipe.data.deduplicate == "off", "as verl drops no row"
    unneeded = " ".join(translation.notes.unneeded)
    assert "image_key" not in unneeded
    assert "data.image_key: set by verl for text too" in " ".join(translation.notes.remarks)
    with pytest.raises(UserError, match=r"'trainer\.v2' is not a known setting of verl"):
        translate(RESOLVED.replace("v1: {trainer_mode: sync}", "v2: 1"))


def test_a_setting_that_moved_is_read_at_either_place() -> None:
    moved = "reward.custom_reward_function.path=my/score.py"
    both = translate(f"{GRPO} custom_reward_function.path=null {moved}")
    assert both.recipe.reward.functions[0].name == "my/score.py:compute_score"
    assert translate(f"{GRPO} {moved} custom_reward_function.path=null").tree == both.tree
    kwargs = "reward.reward_kwargs.overlong_buffer_cfg"
    shaped = translate(f"{GRPO} {kwargs}.enable=True {kwargs}.len=64").recipe.rl.algorithm
    assert shaped.overlong is not None
    assert shaped.overlong.cache_tokens == 64

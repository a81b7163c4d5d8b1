"""A verl run keeps its meaning: units, defaults, contradictions, and unknown keys."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.verl.translate import Translation, render, translate
from schemas.algorithm import ImportanceCorrection
from schemas.errors import UserError

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
WHOLE = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B"
    " data.train_files=gsm8k/train.parquet data.val_files=gsm8k/test.parquet"
)


def command(*settings: str) -> Translation:
    """Translate a whole command with these settings besides the essential ones."""
    return translate(f"{WHOLE} {' '.join(settings)}")


def excerpt(*settings: str) -> Translation:
    """Translate settings of which others are not shown."""
    return translate(" ".join(["algorithm.adv_estimator=grpo", *settings]))


def refusal(*settings: str) -> str:
    with pytest.raises(UserError) as error:
        excerpt(*settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_whole_command_gets_verls_defaults_and_an_excerpt_its_examples() -> None:
    whole = command().recipe
    assert (whole.rl.rollout.prompts, whole.rl.update.mini_batches) == (1024, 4)
    assert whole.rl.iterations == 7473 // 1024 * 30
    assert whole.rl.algorithm.advantage == "gae"
    shown = excerpt().recipe
    assert (shown.rl.rollout.prompts, shown.rl.update.mini_batches) == (64, 2)
    assert shown.rl.iterations == 116
    assert shown.sft.enabled is False, "verl starts RL from the model itself"


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        (["data.train_batch_size=96", f"{ACTOR}.ppo_mini_batch_size=24"],
         "rl.update.mini_batches", 4),
        (["data.train_batch_size=96", f"{ACTOR}.ppo_mini_batch_size=24",
          f"{ACTOR}.ppo_epochs=2", f"{ACTOR}.optim.lr_warmup_steps=10"],
         "rl.update.optimizer.schedule.warmup_steps", 10 * 4 * 2),
        ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", "data.max_response_length=256"],
         "hardware.learner.micro_batch_tokens", 4 * (512 + 256)),
        ([f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=8192"],
         "hardware.learner.micro_batch_tokens", 8192),
        (["trainer.total_epochs=3"], "rl.iterations", 348),
        (["trainer.total_training_steps=50", "trainer.total_epochs=3"], "rl.iterations", 50),
        ([f"{ACTOR}.clip_ratio=0.1", f"{ACTOR}.clip_ratio_high=0.28"],
         "rl.algorithm.clip_low", 0.1),
        ([f"{ACTOR}.clip_ratio_c=10"], "rl.algorithm.clip_dual", 10),
        ([f"{ACTOR}.entropy_coeff=0.001"], "rl.algorithm.entropy_coef", 0.001),
        (["algorithm.norm_adv_by_std_in_grpo=False"], "rl.algorithm.norm_by_std", False),
        ([f"{ACTOR}.loss_agg_mode=seq-mean-token-sum"],
         "rl.algorithm.aggregation", "seq-mean-token-sum"),
        ([f"{ACTOR}.tis_imp_ratio_cap=3"], "rl.algorithm.importance_correction.cap", 3),
        (["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc",
          "algorithm.filter_groups.max_num_gen_batches=-1"],
         "rl.algorithm.dynamic_sampling.max_rounds", 0),
        (["algorithm.filter_groups.enable=True", "data.train_batch_size=64",
          "data.gen_batch_size=192"], "rl.algorithm.dynamic_sampling.batch_factor", 3),
        (["reward_model.overlong_buffer.enable=True", "reward_model.overlong_buffer.len=128"],
         "rl.algorithm.overlong.cache_tokens", 128),
        (["data.filter_overlong_prompts=True", "data.truncation=left"], "data.over_length", "drop"),
        (["trainer.test_freq=5"], "rl.validation.every", 5),
        (["trainer.save_freq=20"], "rl.checkpoint.every", 20),
        (["trainer.experiment_name='My Run_1'"], "name", "my-run-1"),
        (["trainer.logger=[console]"], "tracking.wandb", False),
        ([f"{ROLLOUT}.val_kwargs.n=32", f"{ROLLOUT}.val_kwargs.top_p=0.7"],
         "evaluate.pass_k", (1, 32)),
        ([f"{ROLLOUT}.name=hf"], "hardware.rollout.engine", "transformers"),
        (["trainer.n_gpus_per_node=8", f"{ACTOR}.use_kl_loss=True"], "hardware.learner.ranks", 4),
        (["trainer.n_gpus_per_node=8", f"{ACTOR}.use_kl_loss=True"], "hardware.rollout.engines", 3),
    ],
)  # fmt: skip
def test_conversions_by_number(settings: list[str], path: str, value: Any) -> None:
    node: Any = excerpt(*settings).recipe.model_dump()
    for part in path.split("."):
        node = node[part]
    assert node == value


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("kl", "k1"), ("k1", "k1"), ("abs", "abs"), ("mse", "k2"), ("k2", "k2"), ("low_var_kl", "k3"),
     ("k3", "k3"), ("full", "full"), ("k3+", "k3+")],
)  # fmt: skip
def test_kl_types_by_both_names(theirs: str, ours: str) -> None:
    kl = excerpt(f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type={theirs}").recipe.rl.algorithm
    assert (kl.kl.where, kl.kl.estimator) == ("loss", ours)


def test_adaptive_kl_in_the_reward_keeps_its_constants() -> None:
    kl = excerpt(
        "algorithm.use_kl_in_reward=True",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.target_kl=0.2",
        "algorithm.kl_ctrl.horizon=5000",
        "algorithm.kl_penalty=low_var_kl",
    ).recipe.rl.algorithm.kl
    assert (kl.estimator, kl.controller, kl.target, kl.horizon) == ("k3", "adaptive", 0.2, 5000)


@pytest.mark.parametrize(
    ("theirs", "ours", "preset"),
    [("gae", "gae", "ppo"), ("rloo", "rloo", "rloo"), ("remax", "remax", "remax"),
     ("reinforce_plus_plus", "reinforce++", "rloo"), ("grpo", "grpo", "grpo"),
     ("reinforce_plus_plus_baseline", "reinforce++-baseline", "rloo")],
)  # fmt: skip
def test_estimators_by_name(theirs: str, ours: str, preset: str) -> None:
    rl = translate(f"algorithm.adv_estimator={theirs} {ROLLOUT}.n=4").recipe.rl
    assert (rl.algorithm.advantage, rl.preset) == (ours, preset)
    assert (rl.critic is not None) == (theirs == "gae")
    assert rl.rollout.greedy_baseline == (theirs == "remax")


def test_gspo_without_clips_gets_the_papers_not_verls() -> None:
    """verl's .2 on a sequence's ratio never clips, so its gspo alone would be no gspo."""
    alone = excerpt(f"{ACTOR}.policy_loss.loss_mode=gspo").recipe.rl.algorithm
    assert (alone.ratio_level, alone.clip_low, alone.clip_high) == ("sequence", 3e-4, 4e-4)
    chosen = excerpt(
        f"{ACTOR}.policy_loss.loss_mode=gspo",
        f"{ACTOR}.clip_ratio_low=0.0003",
        f"{ACTOR}.clip_ratio_high=0.001",
        f"{ACTOR}.loss_agg_mode=seq-mean-token-mean",
    ).recipe.rl.algorithm
    assert (chosen.clip_low, chosen.clip_high, chosen.clip_dual) == (3e-4, 1e-3, None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["algorithm.adv_estimtor=grpo"], ["did you mean 'algorithm.adv_estimator'"]),
        (["trainer.total_epoch=1"], ["did you mean 'trainer.total_epochs'"]),
        (["env.rolout.n=8"], ["did you mean 'env.rollout.n'"]),
        (["~trainer.loger"], ["did you mean 'trainer.logger'"]),
        (["algorithm.adv_estimator=grpoo"], ["grpoo", "did you mean 'grpo'"]),
        ([f"{ACTOR}.policy_loss.loss_mode=gpg"], ["the run needs GPG", "loss_mode = gpg"]),
        ([f"{ACTOR}.use_kl_loss=True", "algorithm.use_kl_in_reward=True"], ["both", "one KL"]),
        ([f"{ACTOR}.ppo_mini_batch_size=24"], ["24 does not divide", "train_batch_size = 64"]),
        ([f"{ROLLOUT}.n=4", "env.rollout.n=8"], ["n = 4", "n = 8", "set one of them"]),
        ([f"{ROLLOUT}.n=1"], ["algorithm.adv_estimator=grpo", "at least 2"]),
        (["algorithm.filter_groups.enable=True", "data.train_batch_size=64",
          "data.gen_batch_size=100"], ["100 is not a multiple"]),
        ([f"{ACTOR}.optim.lr=fast"], ["optim.lr = 'fast' is not a number"]),
        ([f"{ROLLOUT}.temperature=hot"], ["temperature = 'hot' is not a number"]),
        ([f"{ROLLOUT}.dtype=float16"], ["'float16' has no counterpart; bfloat16, float32 have"]),
        (["data.train_files=m.parquet", "data.val_files=m.parquet",
          "custom_reward_function.path=r.py"], ["--train-rows N"]),
        (["data.train_files=math.parquet", "data.val_files=m.parquet",
          "trainer.total_training_steps=9"], ["--reward package.module:function"]),
        (["reward_model.enable=True", "data.train_files=h.jsonl"], ["the run trains its own"]),
        ([f"{ROLLOUT}.top_p=0.9"], ["rl.rollout", "set top_p to 1"]),
        (["ppo_epochs=2"], ["'ppo_epochs' is the end of", "write it in full"]),
        ([f"{ACTOR}.shuffle=${{data.nowhere}}"], ["refers to 'data.nowhere'"]),
        (["trainer.test_freq"], ["'trainer.test_freq' is not of the form key=value"]),
    ],
)  # fmt: skip
def test_refusals_name_key_rule_and_remedy(settings: list[str], words: list[str]) -> None:
    sentence = refusal(*settings)
    for word in words:
        assert word in sentence


def test_a_critic_on_other_mini_batches_than_the_actor_is_refused() -> None:
    with pytest.raises(UserError, match=r"critic.ppo_mini_batch_size = 16 differs"):
        translate(f"{ACTOR}.ppo_mini_batch_size=32 critic.ppo_mini_batch_size=16")


def test_a_whole_command_must_name_model_and_data() -> None:
    start = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae"
    with pytest.raises(UserError, match=r"actor_rollout_ref.model.path is missing.* add \.\.\."):
        translate(start)
    assert translate(f"{start} ...").recipe.model.path == "Qwen/Qwen2.5-0.5B-Instruct"


def test_shell_hydra_and_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "folder")
    text = r"""
set -x
n=4; export LEN=$((2 * 128))
BATCH=${BATCH:-$n}
PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo --config-name='dapo_trainer' \
    data.train_files="['$DATA/gsm8k/train.parquet', '$DATA/gsm8k/train2.parquet']" \
    data.val_files="$DATA/gsm8k/test.parquet" \
    +actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2 \
    actor_rollout_ref.model.path=a/b \
    data.max_response_length=$((LEN * 2)) data.max_prompt_length='${data.max_response_length}' \
    trainer.total_training_steps=3 ~critic.optim.lr ++trainer.logger='["console"]' \
    data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=32 $@ 2>&1 | tee log
"""
    translation = translate(text)
    recipe = translation.recipe
    assert [s.model_dump()["path"] for s in recipe.data.sources] == [
        *("folder/gsm8k/train.parquet", "folder/gsm8k/train2.parquet", "folder/gsm8k/test.parquet")
    ]
    assert (recipe.data.max_prompt_tokens, recipe.rl.rollout.max_new_tokens) == (512, 512)
    assert recipe.hardware.learner.attention == "flash_attention_2"
    assert "dapo_trainer: its settings are not read" in translation.notes.differs[0]
    with pytest.raises(UserError, match=r"\$NOBODY_SET_THIS has no value"):
        translate(f"{WHOLE} data.train_batch_size=$NOBODY_SET_THIS")


def test_nested_config_with_interpolations() -> None:
    config = """
algorithm: {_target_: verl.AlgoConfig, adv_estimator: grpo, gamma: 1.0}
actor_rollout_ref:
  actor:
    ppo_epochs: 2
    ppo_mini_batch_size: 16
    policy_loss: {loss_mode: vanilla, clip_cov_ratio: 0.0002}
    profiler: {save_path: "${oc.select:global_profiler.save_path}"}
  rollout: {name: "???", n: 4, response_length: "${oc.select:data.max_response_length,512}"}
critic:
  ppo_epochs: ${oc.select:actor_rollout_ref.actor.ppo_epochs,1}
data: {train_batch_size: 32, max_response_length: 128, max_prompt_length: "${.max_response_length}"}
"""
    rl = translate(config).recipe.rl
    assert (rl.update.epochs, rl.update.mini_batches, rl.rollout.samples) == (2, 2, 4)
    assert translate(config).recipe.data.max_prompt_tokens == 128


def test_rows_of_local_files_are_counted(tmp_path: Path) -> None:
    for name, rows in (("train", 640), ("test", 8)):
        pl.DataFrame({"prompt": ["x"] * rows}).write_parquet(tmp_path / f"gsm8k_{name}.parquet")
    translation = excerpt(
        f"data.train_files={tmp_path}/gsm8k_train.parquet",
        f"data.val_files={tmp_path}/gsm8k_test.parquet",
    )
    assert translation.recipe.rl.iterations == 10


def test_switched_off_settings_are_not_reported() -> None:
    """A verl config lists everything; the reader wants what makes a difference."""
    notes = excerpt("actor_rollout_ref.model.lora_rank=0", "data.shuffle=True").notes
    assert not notes.differs
    notes = excerpt("actor_rollout_ref.model.lora_adapter_path=some/where").notes
    assert "an adapter begins at zero: merge that one into model.path" in notes.differs[0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["lora_rank=64", "lora_alpha=32"], {"rank": 64, "alpha": 32.0}),
        (["lora.rank=8", "lora.alpha=8"], {"rank": 8, "alpha": 8.0}),
        (
            ["lora_rank=8", "target_modules=[q_proj,v_proj]"],
            {"rank": 8, "alpha": 16.0, "targets": ("q_proj", "v_proj")},
        ),
    ],
)
def test_an_adapter_comes_over(settings: list[str], expected: dict[str, Any]) -> None:
    given = [f"actor_rollout_ref.model.{setting}" for setting in settings]
    translation = excerpt(*given, "actor_rollout_ref.actor.fsdp_config.param_offload=True")
    adapter = translation.recipe.model.adapter
    assert adapter is not None
    assert {name: getattr(adapter, name) for name in expected} == expected
    assert translation.recipe.hardware.learner.zero_stage != 3
    assert any("no param_offload" in note for note in translation.notes.remarks)


def test_a_setting_that_follows_another_is_reported_by_value() -> None:
    config = """
algorithm.adv_estimator: gae
global_profiler: {tool: null}
actor_rollout_ref.ref.strategy: ${actor_rollout_ref.actor.strategy}
actor_rollout_ref.actor.strategy: fsdp2
actor_rollout_ref.actor.profiler.tool: ${oc.select:global_profiler.tool,null}
trainer.default_local_dir: ${oc.env:HERE}
"""
    assert translate(config).notes.unneeded == [
        "actor_rollout_ref.ref.strategy = fsdp2: a reference, where the KL needs one, is frozen and"
        " one rank, which holds the whole model",
        "actor_rollout_ref.actor.strategy = fsdp2: the learner is DeepSpeed's",
        "trainer.default_local_dir = ${oc.env:HERE}: set store",
    ]


def test_notes_are_comments_above_the_recipe() -> None:
    text = render(excerpt("env.history_length=4"))
    assert text.startswith("# Without counterpart, and the run differs for it:")
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize(
    "path", ["algorithm.adv_estimator", "actor_rollout_ref.rollout.n", "trainer.total_epochs"]
)
def test_recipes_and_overrides_know_only_our_names(path: str) -> None:
    with pytest.raises(UserError, match="is not a known key"):
        load_recipe("quickstart", {path: 1}, directory=RECIPES)


@pytest.mark.parametrize("theirs", ["kl", "k1"])
def test_k1_as_a_loss_is_noted(theirs: str) -> None:
    said = render(excerpt(f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type={theirs}"))
    text = " ".join(said.replace("#", " ").split())
    assert f"kl_loss_type = {theirs}: as a loss its expected gradient is zero" in text
    assert "set rl.algorithm.kl.estimator to k2 or k1+" in text
    other = excerpt(f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=k2")
    assert "expected gradient" not in render(other)


def test_a_value_that_the_script_does_not_tell_ends_it_only_where_it_is_needed() -> None:
    where = "/x trainer.default_local_dir=$NOBODY_SET_THIS/x"
    assert translate(f"{WHOLE} trainer.default_hdfs_dir={where}").notes.unneeded
    named = f"{WHOLE} trainer.experiment_name=$(hostname)"
    assert translate(named, name="mine").recipe.name == "mine"
    with pytest.raises(UserError, match=r"experiment_name: \$\(hostname\) .*, or pass --name NAME"):
        translate(named)
    with pytest.raises(UserError, match=r"data.train_batch_size: \$\(nproc\) .*known only where"):
        translate(f"{WHOLE} data.train_batch_size=$(nproc)")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("data.shuffle=False", "data.shuffle = False: prompts are always shuffled"),
        (
            "+data.apply_chat_template_kwargs.enable_thinking=False",
            "enable_thinking = False: the chat template is called without options; set",
        ),
        (
            "data.train_max_samples=9",
            "data.train_max_samples = 9: all rows are read; set data.sour",
        ),
        ("trainer.v1.trainer_mode=separate_async", "every iteration samples with the newest"),
        ("actor_rollout_ref.model.exclude_modules=head", "model.adapter.targets names"),
    ],
)
def test_what_the_run_does_without_is_told(setting: str, said: str) -> None:
    assert any(said in note for note in excerpt(setting).notes.differs)


def test_dapos_reward_pays_as_verls_does() -> None:
    """+1 and -1: the overlong penalty would weigh twice as much beside 0 and 1."""
    files = "data.train_files=dapo-math-17k.parquet data.val_files=aime-2024.parquet"
    recipe = excerpt(*files.split()).recipe
    assert ([f.weight for f in recipe.reward.functions], recipe.reward.offset) == ([2.0], -1.0)
    files = "data.train_files=math/train.parquet data.val_files=aime-2024.parquet"
    assert excerpt(*files.split()).recipe.reward.offset == 0.0


def test_a_clip_below_every_ratio_clips_nothing() -> None:
    """verl's CISPO script has 10."""
    translation = excerpt(f"{ACTOR}.clip_ratio_low=10", f"{ACTOR}.policy_loss.loss_mode=cispo")
    assert translation.recipe.rl.algorithm.clip_low == 1


def test_importance_correction_by_its_new_name() -> None:
    correction = "algorithm.rollout_correction.rollout_is"
    found = excerpt(f"{correction}=sequence", f"{correction}_threshold=3").recipe.rl.algorithm
    assert found.importance_correction is not None
    assert (found.importance_correction.level, found.importance_correction.cap) == ("sequence", 3)


RC = "algorithm.rollout_correction"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("rollout_is=token rollout_is_threshold=0.5_5.0",
         {"level": "token", "mode": "mask", "low": 0.5, "cap": 5.0}),
        ("rollout_is=sequence rollout_is_threshold=2.0 rollout_rs=seq_sum_k1"
         " rollout_rs_threshold=0.5_2.0",
         {"level": "sequence", "mode": "mask", "low": 0.5, "cap": 2.0}),
        ("rollout_is=token rollout_is_threshold=9 rollout_rs=token_k1"
         " rollout_rs_threshold=0.5_5.0",
         {"level": "token", "mode": "mask", "low": 0.2, "cap": 2.0}),
        ("rollout_rs=seq_mean_k1 rollout_rs_threshold=0.5_4.0",
         {"reject": [{"statistic": "geometric", "low": 0.25, "high": 2.0}]}),
        ("rollout_rs=seq_mean_k1 rollout_rs_threshold=4.0",
         {"reject": [{"statistic": "geometric", "low": 0.25, "high": 4.0}]}),
        ("rollout_is=token rollout_rs=seq_mean_k1,seq_mean_k3 rollout_rs_threshold='0.5_2.0,0.01'",
         {"level": "token",
          "reject": [{"statistic": "geometric", "low": 0.5, "high": 2.0},
                     {"statistic": "k3", "high": 0.01}]}),
    ],
)  # fmt: skip
def test_masks_keep_what_verls_keep(settings: str, expected: dict[str, Any]) -> None:
    """verl compares bounds of k1 with sampler / old, and those of rollout_is with old / sampler: a
    recipe with the one for the other would keep what verl rejects."""
    translation = excerpt(*(f"{RC}.{setting}" for setting in settings.split()))
    found = translation.recipe.rl.algorithm.importance_correction
    assert found == ImportanceCorrection.model_validate(expected)
    stays = "masked tokens stay in the denominators"
    assert any(stays in note for note in translation.notes.remarks)
    assert translation.notes.differs == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("rollout_rs=seq_sum_k1 rollout_rs_threshold=0.5_2.0", "masks by the weight that it"),
        ("rollout_is=sequence rollout_rs=seq_sum_k1 rollout_rs_threshold=0.1_2.0",
         "keeps weights up to 10"),
        ("rollout_is=token rollout_rs=seq_sum_k1 rollout_rs_threshold=0.5_2.0",
         "set algorithm.rollout_correction.rollout_is to sequence"),
        ("rollout_rs=seq_max_k3 rollout_rs_threshold=1", "'seq_max_k3' has no counterpart"),
        ("rollout_rs=seq_mean_k1", "rollout_rs_threshold = '' is no positive number or LOW_HIGH"),
        ("rollout_rs=seq_mean_k3 rollout_rs_threshold=1,2", "holds 2 bounds and rollout_rs 1"),
        ("rollout_is=token rollout_is_threshold=two", "= 'two' is no positive number"),
        ("bypass_mode=True loss_type=reinforce", "'reinforce' has no counterpart; ppo_clip"),
    ],
)  # fmt: skip
def test_a_mask_that_no_recipe_has_is_refused(settings: str, said: str) -> None:
    assert said in refusal(*(f"{RC}.{setting}" for setting in settings.split()))


def test_bypass_mode_measures_against_the_sampler() -> None:
    translation = excerpt(f"{RC}.bypass_mode=True", f"{RC}.loss_type=ppo_clip")
    assert translation.recipe.rl.update.old_logprobs == "rollout"
    assert translation.notes.differs == []
    both = excerpt(f"{RC}.bypass_mode=True", f"{RC}.rollout_is=token")
    assert not both.recipe.rl.algorithm.importance_correction.is_on
    (told,) = both.notes.differs
    assert told.startswith("algorithm.rollout_correction.rollout_is = token: bypass_mode")


def test_an_npu_is_told() -> None:
    translation = excerpt("trainer.device=npu")
    assert translation.recipe.hardware.device == "auto"
    assert any("Ascend NPUs are not supported" in note for note in translation.notes.remarks)


def test_a_run_that_only_validates_becomes_an_evaluation() -> None:
    """Run as it is, the recipe would train for the whole schedule."""
    both = {only: command(f"trainer.val_only={only}") for only in (True, False)}
    assert both[False].next_command("r.yaml") == "rl-pipeline run r.yaml --dry-run"
    assert both[True].next_command("r.yaml") == "rl-pipeline evaluate Qwen/Qwen2.5-0.5B r.yaml"
    assert "rl-pipeline evaluate Qwen/Qwen2.5-0.5B RECIPE" in " ".join(both[True].notes.remarks)
    assert both[True].recipe.evaluate.samples == 1, "verl's validation is greedy"
    assert both[False].recipe.evaluate.samples == 8


@pytest.mark.parametrize(
    ("path", "step"), [("/ckpts/global_step_60/", "60"), ("/ckpts/newest", "N")]
)
def test_a_checkpoint_to_resume_from_becomes_a_fork(path: str, step: str) -> None:
    """Without a word the recipe would train from iteration 1, and look like the same run."""
    (note,) = [
        note
        for note in command(f"trainer.resume_from_path={path}").notes.remarks
        if "resume_from_path" in note
    ]
    assert note.startswith(f"trainer.resume_from_path = {path}: checkpoints of verl are not read")
    assert f"`rl-pipeline fork latest@{step} -o PATH=VALUE` continues from it" in note
    for none in ("null", "False"):
        remarks = command(f"trainer.resume_from_path={none}").notes.remarks
        assert not any("fork" in note for note in remarks)

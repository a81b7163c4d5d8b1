"""The reward of a verl run: its function, arguments and column, its sandbox, its data's rule."""

import pytest

from rlcore.verl.translate import Translation, translate
from schemas.errors import UserError

ACTOR = "actor_rollout_ref.actor"


def excerpt(*settings: str) -> Translation:
    """Translate settings of which others are not shown."""
    return translate(" ".join(["algorithm.adv_estimator=grpo", *settings]))


def test_reward_by_file_by_option_and_by_model() -> None:
    by_file = excerpt("custom_reward_function.path=my/score.py", "custom_reward_function.name=f")
    assert by_file.recipe.reward.functions[0].name == "my/score.py:f"
    (function,) = excerpt("custom_reward_function.path=my/score.py").recipe.reward.functions
    assert (function.name, function.options) == ("my/score.py:compute_score", {})
    lists = excerpt("custom_reward_function.path=s.py", "reward_model.reward_manager=batch")
    assert any("s.py:compute_score takes lists there" in note for note in lists.notes.differs)
    by_module = excerpt("custom_reward_function.path=pkg://my.score")
    assert by_module.recipe.reward.functions[0].name == "my.score:compute_score"
    by_option = translate("trainer.nnodes=1", reward="my.module:score")
    assert by_option.recipe.reward.functions[0].name == "my.module:score"
    by_model = excerpt("reward_model.enable=True", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4").recipe
    assert by_model.hardware.learner.micro_batch_tokens == 9 * 1024, "nine ranked responses fit"
    assert [(f.name, f.weight) for f in by_model.reward.functions] == [
        *(("reward_model", 1.0), ("gsm8k", 0.0))
    ]
    assert by_model.reward_model is not None
    assert by_model.sft.enabled


@pytest.mark.parametrize(
    "keys",
    [
        ("reward_model.enable", "reward_model.model.path"),
        ("reward.reward_model.enable", "reward.reward_model.model_path"),
    ],
)
def test_a_reward_model_that_is_named_is_brought(keys: tuple[str, str]) -> None:
    translation = excerpt(f"{keys[0]}=True", f"{keys[1]}=owner/name")
    recipe = translation.recipe
    assert {name: one.path for name, one in recipe.reward_models.items()} == {"model": "owner/name"}
    assert [function.name for function in recipe.reward.functions] == ["reward_model:model"]
    assert recipe.reward_model is None
    assert "its own tokenizer and chat template" in str(translation.notes)


def test_arguments_of_a_reward_function_are_its_options() -> None:
    own = "custom_reward_function"
    translation = excerpt(
        f"{own}.path=s.py", f"+{own}.reward_kwargs.bonus=0.5", f"+{own}.reward_kwargs.mode=strict"
    )
    (function,) = translation.recipe.reward.functions
    assert function.options == {"bonus": 0.5, "mode": "strict"}
    assert not any("reward_kwargs" in note for note in translation.notes.differs)
    config = "custom_reward_function: {path: s.py, name: f, reward_kwargs: {bonus: 0.5, no: null}}"
    (function,) = translate(config).recipe.reward.functions
    assert (function.name, function.options) == ("s.py:f", {"bonus": 0.5})


def test_the_column_that_names_the_task_is_read_from_each_file() -> None:
    files = ("data.train_files=/d/math/train.parquet", "data.val_files=/d/math/test.parquet")
    sources = excerpt(*files, "data.reward_fn_key=source").recipe.data.sources
    assert [s.model_dump()["columns"]["data_source"] for s in sources] == ["source", "source"]
    sources = excerpt(*files, "data.reward_fn_key=data_source").recipe.data.sources
    assert [s.model_dump()["columns"]["data_source"] for s in sources] == [None, None]


def test_programs_are_run_by_the_reward_code() -> None:
    files = ("data.train_files=/d/code/train.parquet", "data.val_files=/d/code/test.parquet")
    steps, box = "trainer.total_training_steps=9", "reward_model.sandbox_fusion"
    translation = excerpt(*files, steps, f"{box}.url=http://box/run", f"{box}.max_concurrent=8")
    assert [f.name for f in translation.recipe.reward.functions] == ["code"]
    assert any("no service is asked" in note for note in translation.notes.remarks)
    assert any("set hardware.reward_workers" in note for note in translation.notes.unneeded)
    with pytest.raises(UserError, match="--reward package"):
        excerpt(*files, steps)


def test_mathematics_is_rewarded_by_value_and_counted_by_name() -> None:
    files = "['/d/gsm8k/train.parquet','/d/math/train.parquet']"
    translation = excerpt(f'data.train_files="{files}"', "data.val_files=/d/aime-2024.parquet")
    (function,) = translation.recipe.reward.functions
    assert function.name == "math"
    assert any("verl has a rule for each data_source" in n for n in translation.notes.differs)
    assert translation.recipe.rl.iterations == (7473 + 7500) // 64

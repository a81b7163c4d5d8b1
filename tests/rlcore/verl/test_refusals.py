"""What has no counterpart as a whole is refused by its name, never made into a plain GRPO."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.verl.refusals import ENGINES, OBJECTIVES, media, refuse
from rlcore.verl.settings import ACTOR, Notes, VerlRun
from schemas.algorithm import ADVANTAGES, POLICY_LOSSES
from schemas.errors import UserError


def run(values: dict[str, Any]) -> VerlRun:
    return VerlRun(values, excerpt=False, notes=Notes())


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"distillation.enabled": True}, "distillation (distillation.enabled = True)"),
        ({"algorithm.adv_estimator": "gdpo"}, "GDPO (algorithm.adv_estimator = gdpo)"),
        ({f"{ACTOR}.policy_loss.loss_mode": "sapo"}, "SAPO (actor_rollout_ref.actor.policy_loss"),
        ({"data.image_key": "images"}, "images or video (data.image_key = images)"),
        (
            {"data.train_files": "/data/geo3k/train.parquet"},
            "images (data.train_files = /data/geo3k",
        ),
        ({"data.train_files": ["a.parquet", "Geometry3K.parquet"]}, "images (data.train_files = "),
        ({"data.video_key": "clips"}, "video (data.video_key = clips)"),
        ({"model_engine": "megatron"}, "Megatron (model_engine = megatron)"),
        ({f"{ACTOR}.strategy": "torchtitan"}, "TorchTitan (actor_rollout_ref.actor.strategy = "),
        ({f"{ACTOR}.megatron.param_offload": True}, "Megatron (actor_rollout_ref.actor.megatron."),
        ({"actor_rollout_ref.model.mtp.enable": True}, "multi-token prediction ("),
    ],
)
def test_each_is_named_with_its_setting(values: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError) as error:
        refuse(run(values), (), defaults=False)
    assert f"no recipe: the run needs {named}" in str(error.value)
    assert "for which there is no counterpart; " in str(error.value)


def test_the_first_engine_is_named_whatever_a_later_key_refers_to() -> None:
    values = {"model_engine": "megatron", f"{ACTOR}.strategy": "${model.engine}"}
    with pytest.raises(UserError, match=r"Megatron \(model_engine = megatron\)"):
        refuse(run(values), (), defaults=False)
    refuse(run({f"{ACTOR}.strategy": ["fsdp"]}), (), defaults=False)


def test_all_are_named_once_each_with_its_remedy() -> None:
    asked = {
        "algorithm.adv_estimator": "gpg",
        f"{ACTOR}.policy_loss.loss_mode": "gpg",
        "data.image_key": "images",
    }
    with pytest.raises(UserError) as error:
        refuse(run(asked), ("--config-name=ppo_megatron_trainer.yaml",), defaults=False)
    said = str(error.value)
    assert said.count("GPG") == 1
    assert "Megatron (--config-name=ppo_megatron_trainer.yaml)" in said
    assert "images or video" in said
    assert "`rl-pipeline algorithms` lists, and " in said
    assert "(model_engine=dp) and translate that, and remove the key if the rows hold" in said


def test_what_is_off_or_has_a_counterpart_is_not_refused() -> None:
    values = {
        "distillation.enabled": False,
        "algorithm.adv_estimator": "grpo",
        f"{ACTOR}.policy_loss.loss_mode": "cispo",
        f"{ACTOR}.strategy": "fsdp2",
        "data.image_key": None,
        "model_engine": "veomni",
    }
    refuse(run(values), ("--config-name=ppo_trainer",), defaults=False)


def test_an_objective_that_there_is_is_not_listed() -> None:
    """Whoever adds one here must see that verl's is still refused."""
    refused = {name for names in OBJECTIVES.values() for name in names}
    assert not refused & {*ADVANTAGES, *POLICY_LOSSES}
    assert not set(ENGINES) & {"dp", "fsdp", "fsdp2"}


def test_a_config_sets_the_image_key_for_text_too(tmp_path: Path) -> None:
    """verl's default; the columns of the data tell, where it is here."""
    file = tmp_path / "train.parquet"
    values = {"data.image_key": "images", "data.train_files": str(file)}
    settings = run(values)
    refuse(settings, (), defaults=True)
    assert media(settings) == {}
    assert "data.image_key: set by verl for text too" in settings.notes.remarks[0]
    pl.DataFrame({"prompt": ["x"]}).write_parquet(file)
    refuse(settings, (), defaults=True)
    pl.DataFrame({"prompt": ["x"], "images": ["y"]}).write_parquet(file)
    with pytest.raises(UserError, match="images or video"):
        refuse(settings, (), defaults=True)
    assert media(run({})) == {}

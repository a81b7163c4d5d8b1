"""Every key of verl's has one known fate, and a key that nobody knows is asked back."""

from contextlib import suppress
from typing import Any

import pytest

from rlcore.verl.settings import (
    KEYS,
    Fate,
    Notes,
    VerlRun,
    entry,
    full_key,
)
from rlcore.verl.translate import TOGETHER, translate
from schemas.errors import UserError


def test_every_key_has_one_translation() -> None:
    """A key whose function does not exist would be dropped in silence."""
    assert {fate.by for fate in KEYS.values() if fate.by} <= set(TOGETHER)
    for key, fate in KEYS.items():
        assert sum(map(bool, (fate.to, fate.by, fate.lacks, fate.differs))) == 1, key
    assert all(key and not key.endswith(".") for key in KEYS)
    for key, found in KEYS.items():
        if found.to:
            section, *_ = found.to.split(".")
            assert section in translate("trainer.nnodes=1").recipe.model_dump(), key
            for value in (1, True, "sdpa", "bfloat16"):
                with suppress(UserError):
                    VerlRun({key: value}, excerpt=True, notes=Notes()).read(key, found.kind)
                    break
            else:
                pytest.fail(f"{key} takes no value")


def test_an_unknown_key_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'trainer\.nnode' is not a known .*'trainer\.nnodes'\?"):
        entry("trainer.nnode")


def test_a_short_key_is_its_only_ending_or_is_asked_back() -> None:
    """Taken for one of two, a learning rate would go to the wrong model."""
    assert full_key("rollout.top_p") == "actor_rollout_ref.rollout.top_p"
    assert full_key("trainer.nnodes") == "trainer.nnodes"
    assert full_key("no.such_key") == "no.such_key"
    assert full_key("reward.sandbox_fusion.url") == "reward_model.sandbox_fusion.url"
    assert full_key("reward.num_workers") == "reward_model.num_workers"
    with pytest.raises(UserError, match=r"'rollout\.n' is the end of .* and of .*; write it in"):
        full_key("rollout.n")


def test_only_what_asks_for_something_is_told() -> None:
    values = {
        "actor_rollout_ref.model.lora_adapter_path": "some/where",
        "trainer.nnodes": 1,
        "data.shuffle": True,
    }
    found = [key for key, value in values.items() if entry(key).asks(value)]
    assert found == ["actor_rollout_ref.model.lora_adapter_path"]


@pytest.mark.parametrize(
    ("value", "nothing"),
    [(None, True), (False, True), (0, True), ("", False), ("sync", True), (1, False)],
)
def test_a_setting_that_is_switched_off_asks_for_nothing(value: Any, nothing: bool) -> None:
    """A verl config lists everything: told all of it, nobody reads what makes a difference."""
    assert Fate(lacks="no such thing", idle=("sync",)).asks(value) is not nothing


def test_a_setting_that_is_on_by_default_asks_for_something_when_it_is_off() -> None:
    shuffled = entry("data.shuffle")
    assert [shuffled.asks(value) for value in (None, True, False)] == [False, False, True]

"""The axes of an algorithm: what a choice on one means for the others."""

from typing import Any

import pytest

from schemas.algorithm import ADVANTAGES, KL, Algorithm, Traits


def test_a_kl_in_the_reward_has_the_defaults_of_a_reward() -> None:
    """The coefficient of a loss, ten times as large, would drown the task's reward."""
    reward, loss = KL.model_validate({"where": "reward"}), KL.model_validate({"where": "loss"})
    assert (reward.estimator, reward.coef) == ("k1", 0.001)
    assert (loss.estimator, loss.coef) == ("k3", 0.01)
    assert KL.model_validate({"where": "reward", "coef": 0.5}).coef == 0.5


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [({}, False), ({"where": "loss", "coef": 0}, False), ({"where": "loss"}, True)],
)
def test_a_kl_that_weighs_nothing_loads_no_reference(fields: dict[str, Any], wanted: bool) -> None:
    """A frozen model of the policy's size, for nothing."""
    assert KL.model_validate(fields).uses_reference is wanted


def test_a_monitored_kl_is_due_from_the_first_iteration_on() -> None:
    kl = KL(where="monitor", every=3)
    assert [number for number in range(1, 9) if kl.is_due(number)] == [1, 4, 7]
    assert not any(KL().is_due(number) for number in range(1, 9))
    for where in ("none", "loss", "reward"):
        with pytest.raises(ValueError, match=f"every = 3 .* only measured and where = '{where}'"):
            KL.model_validate({"where": where, "every": 3})


def test_a_function_of_the_users_gets_what_the_recipe_provides() -> None:
    """It may read gamma and options, which a built-in estimator may refuse."""
    mine = Algorithm.model_validate(
        {"advantage": "my.module:f", "advantage_options": {"x": 1}, "gae": {"gamma": 0.9}}
    )
    assert mine.is_custom
    assert mine.traits == Traits()


@pytest.mark.parametrize("name", ["my.module:", ":f", "my.module:a-b", "grppo", ""])
@pytest.mark.parametrize("axis", ["advantage", "policy_loss"])
def test_a_name_that_is_neither_ours_nor_a_function_is_refused(axis: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"is not one of .* and not 'package\.module:function'"):
        Algorithm.model_validate({axis: name})


@pytest.mark.parametrize("name", ADVANTAGES)
def test_every_estimator_can_be_named_alone(name: str) -> None:
    assert Algorithm(advantage=name).traits == ADVANTAGES[name]


@pytest.mark.parametrize("level", ["sequence", "sequence-token", "group"])
def test_a_ratio_of_sequences_weighs_sequences(level: str) -> None:
    with pytest.raises(ValueError, match="set aggregation to 'seq-mean-token-mean'"):
        Algorithm.model_validate({"ratio_level": level, "aggregation": "token-mean"})

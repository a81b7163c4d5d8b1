"""What a recipe may name is what there is: the names stand in the schemas and beside the code."""

from typing import get_args

import pytest

from rlcore.algorithms import advantages, kl, losses
from rlcore.engines.registry import ENGINES
from schemas import hardware
from schemas.algorithm import ADVANTAGES, KL, POLICY_LOSSES


@pytest.mark.parametrize(
    ("named", "known"),
    [
        (ADVANTAGES, advantages.ESTIMATORS),
        (POLICY_LOSSES, losses.LOSSES),
        (get_args(KL.model_fields["estimator"].annotation), {*kl.ESTIMATORS, "full"}),
        (hardware.ENGINES, ENGINES),
    ],
    ids=["advantage", "policy_loss", "kl", "engine"],
)
def test_every_name_of_a_recipe_is_known_and_every_known_one_may_be_named(
    named: object, known: object
) -> None:
    assert set(named) == set(known)  # type: ignore[call-overload]

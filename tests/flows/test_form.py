"""The run form of a deployment: typed fields for the common keys, beside the overrides."""

import inspect

import pytest
from prefect.utilities.callables import parameter_schema

from flows.paths import RECIPES
from flows.rl_pipeline import rl_pipeline
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from tasks.runtime.run import with_fields

pytestmark = pytest.mark.timeout(60)
FIELDS = ("seed", "iterations", "learning_rate", "prompts", "samples")
GIVEN = {
    "seed": 0,
    "rl.iterations": 7,
    "rl.update.optimizer.lr": 2e-5,
    "rl.rollout.prompts": 2,
    "rl.rollout.samples": 4,
}


def test_the_form_has_a_typed_field_with_a_description_each() -> None:
    properties = parameter_schema(rl_pipeline.fn).properties
    kinds = {name: properties[name]["anyOf"][0]["type"] for name in FIELDS}
    assert kinds == {**dict.fromkeys(FIELDS, "integer"), "learning_rate": "number"}
    for name in inspect.signature(rl_pipeline.fn).parameters:
        assert properties[name].get("description"), f"{name} is not explained in the form"


def test_a_field_is_a_key_of_the_recipe() -> None:
    recipe = load_recipe("quickstart", with_fields({}, GIVEN), directory=RECIPES)
    assert (recipe.seed, recipe.rl.iterations) == (0, 7)
    assert recipe.rl.update.optimizer.lr == 2e-5
    assert (recipe.rl.rollout.prompts, recipe.rl.rollout.samples) == (2, 4)
    assert with_fields(None, dict.fromkeys(GIVEN)) == {}


def test_a_value_given_both_ways_must_be_the_same() -> None:
    assert with_fields({"seed": 3}, {"seed": 3}) == {"seed": 3}
    with pytest.raises(UserError) as raised:
        with_fields({"rl.iterations": 5}, {"rl.iterations": 6})
    assert str(raised.value) == (
        "rl.iterations = 6 in the run form and 5 in overrides are the same key of the recipe;"
        " leave one of the two out"
    )

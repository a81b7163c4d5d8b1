"""What is wrong with an environment is said before a run starts."""

from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.models.base import build_base_model
from rlcore.plan.preconditions import check_environment
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from schemas.recipe import Recipe
from tests.rlcore.models.scratch import SCRATCH, TEXTS

pytestmark = pytest.mark.timeout(60)
FORGETFUL = (
    "{% for m in messages %}<|user|>{{ m.content }}{% if loop.last %} (last){% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def recipe(**changes: Any) -> Recipe:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return load_recipe("gsm8k-tool-grpo", dotted, directory=RECIPES)


@pytest.mark.slow
def test_what_can_be_played_passes() -> None:
    check_environment(recipe(environment__name="tests.rlcore.envs.samples:Shop"))
    check_environment(load_recipe("quickstart", directory=RECIPES))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"environment__name": "pyton"}, "did you mean 'python'"),
        ({"environment__name": "tests.no_such:Shop"}, "there is no module 'tests.no_such'"),
        ({"environment__options": {"memory": 1}}, "its options are memory_mib"),
        ({"environment__name": "tests.rlcore.envs.samples:NoTools"}, "nor a public method"),
    ],
)
def test_what_cannot_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_environment(recipe(**changes))


@pytest.mark.slow
def test_a_template_that_rewrites_history_is_refused_before_the_first_turn(tmp_path: Path) -> None:
    path = build_base_model(SCRATCH, tmp_path / "model", texts=TEXTS, seed=0)
    changed = recipe(model__path=str(path), model__chat_template=FORGETFUL)
    with pytest.raises(UserError, match="renders an earlier turn differently"):
        check_environment(changed)
    check_environment(recipe(model__path=str(path)))

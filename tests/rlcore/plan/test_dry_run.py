"""A dry run plans every recipe."""

from pathlib import Path

import pytest

from flows.paths import RECIPES
from rlcore.models.base import build_base_model
from rlcore.plan.dry_run import render_plan
from rlcore.plan.machine import check_machine
from rlcore.plan.preconditions import StartCheck
from rlcore.recipes.load import load_recipe, recipe_names
from tests.rlcore.models.scratch import SCRATCH, TEXTS
from tests.rlcore.plan.small import ROOMY


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model where the directory that ``rl-pipeline models smollm2`` writes would be."""
    target = tmp_path_factory.mktemp("models") / "smollm2"
    section = SCRATCH.model_copy(update={"max_tokens": 512})
    return build_base_model(section, target, texts=TEXTS, seed=0)


@pytest.mark.parametrize("name", recipe_names(RECIPES))
def test_every_shipped_recipe_has_a_plan(name: str, smollm2: Path) -> None:
    shipped = load_recipe(name, directory=RECIPES)
    if shipped.model.path == "./models/smollm2":
        shipped = load_recipe(name, {"model.path": str(smollm2)}, directory=RECIPES)
    text = render_plan(StartCheck(check_machine(shipped, ROOMY)))
    assert f"Plan of recipe '{name}'" in text
    assert "None" not in text[text.index("Batch arithmetic") :]

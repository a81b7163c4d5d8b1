"""`rl-pipeline deploy` refuses a wrong recipe before it starts anything."""

from pathlib import Path

import pytest

from flows.cli import main


def test_a_wrong_recipe_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("name: mine\n")
    assert main(["deploy", str(recipe)]) == 2
    assert "model is required; add it to the recipe" in capsys.readouterr().err

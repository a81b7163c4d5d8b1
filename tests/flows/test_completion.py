"""Tab completes commands, options, recipes, their keys, and runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.completion import recipe_keys
from flows.paths import RECIPES, ROOT
from rlcore.recipes.load import load_recipe
from rlcore.results.folders import RECIPE


def completed(line: str, folder: Path) -> list[str]:
    """Return what the shell is offered at the end of ``line``, by the protocol of argcomplete."""
    answer = folder / "answer"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\013",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    command = [sys.executable, "-m", "flows.cli"]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=300)
    return [word.strip() for word in answer.read_text().split("\013")]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rl-pipeline do", {"down", "doctor"}),
        ("rl-pipeline run quickstart-g", {"quickstart-gepo", "quickstart-gspo"}),
        ("rl-pipeline run quickstart -o rl.iter", {"rl.iterations="}),
        ("rl-pipeline run ./m", {"./mine.yaml"}),
        ("rl-pipeline explain rl.iter", {"rl.iterations"}),
        ("rl-pipeline tables roll", {"rollouts"}),
        ("rl-pipeline watch qu", {"quickstart-0123abcd"}),
        ("rl-pipeline stop qu", {"quickstart-0123abcd"}),
        ("rl-pipeline sql --format c", {"csv"}),
    ],
)
def test_what_a_shell_is_offered(line: str, offered: set[str], tmp_path: Path) -> None:
    run = tmp_path / "runs" / "quickstart-0123abcd"
    run.mkdir(parents=True)
    (run / RECIPE).write_text("name: quickstart\n")
    (tmp_path / "mine.yaml").touch()
    assert set(completed(line, tmp_path)) == offered


def test_every_key_that_is_offered_can_be_set() -> None:
    keys = recipe_keys()
    assert {"rl.update.optimizer.lr", "data.sources.0.limit", "seed"} <= set(keys)
    recipe = load_recipe("quickstart", directory=RECIPES).model_dump()
    assert set(recipe) == {key for key in keys if "." not in key}

"""Records what this version promises to later ones: ``python -m tests.released VERSION``."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.recipe import Recipe
from schemas.stages import stage_parents
from tests.flows.small_run import INLINE, run_small

SMALL = {
    **INLINE,
    "model.from_scratch.hidden_size": 32,
    "model.from_scratch.intermediate_size": 32,
    "model.from_scratch.vocab_size": 300,
    "rl.checkpoint": {"keep_last": 1, "keep_best": 1},
}


def keys_of(recipe: Recipe) -> dict[str, str]:
    """Return the digest of what the key of each stage has of ``recipe``."""
    return {
        stage.value: hashlib.sha256(
            json.dumps(recipe.slice_for(stage), sort_keys=True).encode()
        ).hexdigest()[:16]
        for stage in stage_parents(recipe)
    }


def record(target: Path) -> None:
    """Write recipes, keys and the store of a small run into ``target``, which does not exist."""
    shutil.copytree(RECIPES, target / "recipes")
    names = sorted(file.stem for file in RECIPES.glob("[!_]*.yaml"))
    keys = {name: keys_of(load_recipe(name, directory=RECIPES)) for name in names}
    text = json.dumps(keys, indent=1, sort_keys=True) + "\n"
    (target / "keys.json").write_text(text, encoding="utf-8")
    with TemporaryDirectory() as folder:
        run = run_small(Path(folder), SMALL, fresh=True)
        assert run.returncode == 0, run.stdout[-4000:]
        (made,) = (Path(folder) / "runs").glob("quickstart-*")
        command = ["tar", "--sort=name", "--owner=0", "--group=0", "-czf"]
        files = [str(target.resolve() / "store.tar.gz"), "runs/store", f"runs/{made.name}"]
        subprocess.run([*command, *files], cwd=folder, check=True)


if __name__ == "__main__":
    record(Path(__file__).parent / sys.argv[1])

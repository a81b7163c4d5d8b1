"""A copy of this checkout that a test may edit, and what ``rl-pipeline status`` says in it."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.stages import stage_parents
from tasks.runtime.keys import MADE_OF
from tasks.runtime.stage_keys import declared

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "tasks", "rlcore", "schemas")


def edited(text: str) -> str:
    """Return a module with one more statement in each of its functions, and at its end."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body += ast.parse("_edited = 1").body
    return f"{ast.unparse(tree)}\n_EDITED = 1\n"


class Checkout:
    """The copy in ``folder``, with its code recorded as the versions that it has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
        for name in PACKAGES:
            shutil.copytree(ROOT / name, folder / name, ignore=skip)
        shutil.copy(ROOT / "pyproject.toml", folder)
        self.run("-m", "rlcore.store.versions")

    def run(self, *words: str) -> str:
        """Return what Python prints with these words in the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def status(self, recipe: str, overrides: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the rows of ``rl-pipeline status RECIPE``, by stage."""
        settings = [word for k, v in overrides.items() for word in ("-o", f"{k}={json.dumps(v)}")]
        words = ["-m", "flows.cli", "status", recipe, *settings, "--format", "json"]
        return {row["stage"]: row for row in json.loads(self.run(*words))}

    def sources(self) -> Iterator[Path]:
        """Yield the Python files of our packages."""
        for name in PACKAGES:
            yield from (self.folder / name).rglob("*.py")

    def move(self, old: str, new: str) -> None:
        """Move the module ``old`` (dotted) to ``new``, and rewrite what names it."""
        source, target = (self.folder / f"{name.replace('.', '/')}.py" for name in (old, new))
        target.parent.mkdir(exist_ok=True)
        (target.parent / "__init__.py").touch()
        source.rename(target)
        package, _, leaf = old.rpartition(".")
        listed = re.compile(rf"^( *)from {re.escape(package)} import (\([^)]*\)|[\w, ]*)$", re.M)

        def relisted(found: re.Match[str]) -> str:
            indent, names = found[1], re.findall(r"\w+", found[2])
            if leaf not in names:
                return found[0]
            kept = [name for name in names if name != leaf]
            rest = f"{indent}from {package} import {', '.join(kept)}\n" if kept else ""
            home, _, name = new.rpartition(".")
            return f"{rest}{indent}from {home} import {name} as {leaf}"

        for path in self.sources():
            text = path.read_text(encoding="utf-8")
            moved = re.sub(rf"\b{re.escape(old)}\b", new, listed.sub(relisted, text))
            if moved != text:
                path.write_text(moved, encoding="utf-8")


def fill(store: ArtifactStore, name: str, overrides: dict[str, Any], files: Path) -> None:
    """Put a result for each stage of a recipe into ``store``, under the key that a run gives it."""
    recipe = load_recipe(name, overrides, directory=RECIPES)
    made: dict[str, ArtifactRef] = {}
    for stage, parents in stage_parents(recipe).items():
        (files / stage).mkdir(parents=True)
        (files / stage / "text.txt").write_text(stage)
        one, read = declared()[stage], {role: made[parent] for role, parent in parents.items()}
        keys = one.keys(recipe, read)
        lineage = Lineage("r", keys.code, read, metadata={MADE_OF: asdict(keys.parts)})
        made[stage] = store.put(one.kind, keys.key, directory=files / stage, lineage=lineage)

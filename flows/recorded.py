"""A run that was recorded, found by its folder: its recipe, its store, the key of its rollouts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.commands.runs import RECIPE, SUMMARY, run_folders
from rlcore.recipes import load_recipe
from rlcore.store.reader import ArtifactReader
from schemas.errors import UserError
from schemas.recipe import Recipe
from tasks.runtime.drift import RECORDS
from tasks.runtime.folders import flow_run_digits

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Recorded:
    """``key``: of the records of its RL stage in ``store``."""

    name: str
    recipe: Recipe
    store: ArtifactReader
    key: str


def run_folder(name: str, runs: Path) -> Path | None:
    """Return the folder of the run ``name`` below ``runs``, or at that path; None where there is
    none. "latest" is the one that was started last."""
    if name == LATEST:
        return next(iter(run_folders(runs)), None) if runs.is_dir() else None
    for folder in (runs / name, Path(name)):
        if (folder / RECIPE).is_file():
            return folder.resolve()
    return None


def run_names(runs: Path) -> list[str]:
    """Return the names of the runs below ``runs``, the newest first."""
    return [folder.name for folder in run_folders(runs)] if runs.is_dir() else []


def recorded_run(folder: Path, overrides: Mapping[str, Any]) -> Recorded:
    """Return what is recorded of the run in ``folder``, whether it has ended or not; ``overrides``
    change its recipe.

    Raises UserError where it has no rollouts yet.
    """
    name, project = folder.name, folder.absolute().parent.parent
    recipe = load_recipe(str(folder / RECIPE), overrides, directory=folder)
    where = recipe.store if "://" in recipe.store else str(project / recipe.store)
    recipe = recipe.model_copy(update={"store": where})
    store = ArtifactReader(where)
    if (folder / SUMMARY).is_file():
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        key = summary["artifacts"]["rl"].rpartition("/")[2]
        policy = store.peek("policy", key)
        if policy is None:
            raise UserError(f"the run '{name}': its policy {key} is not in the store {where}")
        return Recorded(name, recipe, store, policy.metadata.get(RECORDS, key))
    own = flow_run_digits(name)
    written = [m for m in store.manifests() if m.kind == "rollouts" and m.producer.startswith(own)]
    if not written:
        raise UserError(
            f"the run '{name}' has no stored rollouts in {where} yet; try the reward on its recipe"
        )
    newest = max(written, key=lambda manifest: manifest.created_at)
    return Recorded(name, recipe, store, newest.key.partition("/")[0])

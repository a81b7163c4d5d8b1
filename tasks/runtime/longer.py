"""A stage run that is to do more iterations than one in the store, and would repeat all of its.

It goes on with that run's checkpoints and records where nothing that is done depends on how many
iterations there are to be; its result is what it would have made alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlcore.store.reader import ArtifactReader
from schemas.recipe import Recipe
from tasks.runtime.drift import ACCEPTED, begun_runs, newest_checkpoint

TRAJECTORY = "trajectory"  # metadata of a checkpoint: ``StageKeys.trajectory`` of its stage run
TOTAL = "total"  # metadata of a checkpoint: the iterations that its stage run was to do
ENDS = {"rl": ("rl", "iterations")}  # of a slice, what only says when the stage ends

# (recipe, iterations that the other was to do, those it has done) -> why they cannot be gone on
# with, None where they can.
Obstacle = Callable[[Recipe, int, int], str | None]


@dataclass(frozen=True, slots=True)
class Shorter:
    """A stage run with the same steps that was to end sooner.

    ``key``: of its checkpoints and records; ``step``: of the newest checkpoint; ``total``: the
    iterations it was to do. ``obstacle``: why a run of more iterations cannot go on with it.
    """

    key: str
    step: int
    total: int
    obstacle: str | None

    def sentence(self) -> str:
        """Return what a run says that trains from 0."""
        return f"trains from 0 beside a run of {self.total} iterations: {self.obstacle}"


def total_of(stage: str, recipe_slice: Mapping[str, Any]) -> int | None:
    """Return how many iterations the slice says; None of a stage that has none."""
    if stage not in ENDS:
        return None
    section, name = ENDS[stage]
    return recipe_slice[section][name]


def endless(stage: str, recipe_slice: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the slice without what only says when the stage ends; None where nothing does."""
    if stage not in ENDS:
        return None
    section, name = ENDS[stage]
    rest = {key: value for key, value in recipe_slice[section].items() if key != name}
    return {**recipe_slice, section: rest}


def shorter_run(
    store: ArtifactReader,
    *,
    key: str,
    trajectory: str,
    code: str,
    recipe: Recipe,
    total: int,
    obstacle: Obstacle,
    log: Callable[[str], None],
) -> Shorter | None:
    """Return the run that a run ``key`` of ``total`` iterations would go on with: of those of the
    same ``trajectory`` that have not gone further the one with the most steps, else the first that
    it cannot go on with. None where it has checkpoints itself, or no other has."""
    steps = begun_runs(store)
    if key in steps:
        return None
    refused = None
    for run in sorted(steps, key=lambda run: -steps[run]):
        manifest = newest_checkpoint(store, run, steps[run], log)
        if manifest is None or manifest.metadata.get(TRAJECTORY) != trajectory:
            continue
        done, planned = steps[run], manifest.metadata[TOTAL]
        if done > total:
            continue
        if manifest.code_fingerprint != code or ACCEPTED in manifest.metadata:
            why: str | None = "other code made its checkpoints"
        else:
            why = obstacle(recipe, planned, done)
        found = Shorter(run, done, planned, why)
        if why is None:
            return found
        refused = refused or found
    return refused

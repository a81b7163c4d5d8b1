"""A stage run that is to do more iterations than one in the store, and would repeat all of its.

It goes on with that run's checkpoints and records where nothing that is done depends on how many
iterations there are to be; its result is what it would have made alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rlcore.store.reader import ArtifactReader
from schemas.recipe import Recipe
from tasks.runtime.drift import ACCEPTED, begun_runs, newest_checkpoint
from tasks.runtime.keys import Obstacle

TRAJECTORY = "trajectory"  # metadata of a checkpoint: ``StageKeys.trajectory`` of its stage run
TOTAL = "total"  # metadata of a checkpoint: the iterations that its stage run was to do


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
    it cannot go on with. None where it has checkpoints itself, or no other has. ``code``: digest of
    the code about to run."""
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

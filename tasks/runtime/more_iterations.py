"""A stage run that is to do more iterations than one in the store, and would repeat all of its.

It continues with that run's checkpoints and records where nothing that is done depends on how many
iterations there are to be; its result is what it would have made alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rlcore.store.reader import ArtifactReader
from schemas.recipe import Recipe
from tasks.runtime.drift import ACCEPTED, HalfDone, begun_runs, newest_checkpoint, stopped_run
from tasks.runtime.keys import Obstacle, StageKeys, generation_key
from tasks.runtime.stage_keys import Declared

TRAJECTORY = "trajectory"  # metadata of a checkpoint: ``StageKeys.trajectory`` of its stage run
TOTAL = "total"  # metadata of a checkpoint: the iterations that its stage run was to do


@dataclass(frozen=True, slots=True)
class Shorter:
    """A stage run with the same steps that was to end sooner.

    ``key``: of its checkpoints and records; ``step``: of the newest checkpoint; ``total``: the
    iterations it was to do. ``obstacle``: why a run of more iterations cannot continue with it.
    """

    key: str
    step: int
    total: int
    obstacle: str | None

    def sentence(self) -> str:
        """Return what a run says that trains from 0."""
        return f"trains from 0 beside a run of {self.total} iterations: {self.obstacle}"


def earlier_run(
    store: ArtifactReader,
    stage: Declared,
    keys: StageKeys,
    recipe: Recipe,
    generation: int,
    *,
    is_made: Callable[[str], bool],
    log: Callable[[str], None],
) -> HalfDone | Shorter | None:
    """Return the run with whose checkpoints a run of ``stage`` would continue that has no result
    and no checkpoints itself: one of other code (``stopped_run``), else one of fewer iterations
    (``shorter_run``). What is made again, from generation 2, continues with nothing of others."""
    if stage.resumes is None:
        return None
    other = stopped_run(
        store,
        stage.kind,
        key=generation_key(keys.key, generation),
        identity=keys.identity,
        code=keys.code,
        is_made=is_made,
        log=log,
        alone=generation > 1,
    )
    if other is not None or keys.trajectory is None or keys.total is None or generation > 1:
        return other
    return shorter_run(
        store,
        key=keys.key,
        trajectory=keys.trajectory,
        code=keys.code,
        recipe=recipe,
        total=keys.total,
        obstacle=stage.resumes,
        log=log,
    )


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
    """Return the run that a run ``key`` of ``total`` iterations would continue with: of those of
    the same ``trajectory`` that have not gone further the one with the most steps, else the first
    that it cannot continue with. None where it has checkpoints itself, or no other has. ``code``:
    digest of the code about to run."""
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

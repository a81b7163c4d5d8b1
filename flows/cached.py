"""What the store already holds of a recipe's run. Only read: the dry run leaves it out."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlcore.dry_run.stages import InStore
from rlcore.store.checks import DamagedArtifact
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef, Manifest
from schemas.errors import UserError
from schemas.names import BASE_MODEL
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from tasks.runtime.caching import CachedStage, StageKeys

MISSING = ArtifactRef(kind="missing", key="missing", uri="", sha256="")  # content not known before


def stages_in_store(recipe: Recipe, *, accept_code: bool = False) -> InStore:
    """Return the stages of ``recipe`` whose results a run would take from the store.

    What reads the result of a stage that would run counts as missing: its key is not known before.
    Names and sizes of files are checked; a run checks their content too. What cannot be read, the
    store or a file that is part of a key, is named in the result. ``accept_code``: as of the run.
    Nothing is written or started; Prefect is imported where the store holds any base model.
    Raises UserError where no filesystem is installed for the store's URL.
    """
    store = ArtifactReader(recipe.store)
    try:
        if BASE_MODEL not in store.kinds():
            return InStore()
        return _walk(recipe, store, accept_code)
    except (UserError, OSError) as error:
        return InStore(unread=str(error))


def _walk(recipe: Recipe, store: ArtifactReader, accept_code: bool) -> InStore:
    from flows.rl_pipeline import stages

    found, notes = set[str](), dict[str, str]()

    def call(stage: "CachedStage", **parents: ArtifactRef) -> ArtifactRef:
        if MISSING in parents.values():
            return MISSING

        def peek(key: str) -> Manifest | None:
            try:
                return store.peek(stage.kind, key)
            except DamagedArtifact as damage:
                notes[stage.stage] = f"made again: {damage.fault}"
                return None

        keys = stage.keys(recipe, parents)
        manifest = peek(keys.key)
        if manifest is None:
            manifest, note = _begun(stage, keys, store, peek, accept_code)
            if note:
                notes[stage.stage] = note
        if manifest is None:
            return MISSING
        notes.pop(stage.stage, None)
        found.add(stage.stage)
        return ArtifactRef(kind=stage.kind, key=manifest.key, uri="", sha256=manifest.sha256)

    stages(recipe, call)
    return InStore(stages=frozenset(found), notes=notes)


def _begun(
    stage: "CachedStage",
    keys: "StageKeys",
    store: ArtifactReader,
    peek: Callable[[str], Manifest | None],
    accept_code: bool,
) -> tuple[Manifest | None, str]:
    """Return the result of a half-done run that was continued with other code, if there is one, and
    a note on the checkpoints that a run of the stage would meet."""
    from rlcore.learner.checkpoints import KIND
    from tasks.runtime.drift import continued_key, stopped_run

    other = stage.resumes and stopped_run(
        store,
        stage.kind,
        key=keys.key,
        identity=keys.identity,
        code=keys.code,
        is_made=lambda key: accept_code and peek(key) is not None,
        log=lambda sentence: None,  # of checkpoints of other runs
    )
    if other:
        stopped = f"iteration {other.step} with other code"
        if not accept_code:
            return None, f"stopped after {stopped}: a run is refused without --accept-code"
        return peek(continued_key(keys.key, other.key)), f"goes on after {stopped}"
    names = [name.rpartition("/")[2] for name in store.keys(KIND, f"{keys.key}/")]
    steps = [int(name) for name in names if name.isdecimal()]
    unit = "iteration" if stage.resumes else "step"
    return None, f"goes on after {unit} {max(steps)}" if steps else ""

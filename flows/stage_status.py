"""What the store already holds of a recipe's run, and why the rest would run. Only reads."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from rlcore.learner.checkpoints import KIND
from rlcore.plan.states import Cause, InStore, StageState, State, What
from rlcore.recipes.text import leaves
from rlcore.results.provenance import LAYOUT, layout_text
from rlcore.store.checks import DamagedArtifact
from rlcore.store.reader import ArtifactReader
from rlcore.store.versions import VERSION, why
from schemas.artifacts import ArtifactRef, Manifest
from schemas.errors import UserError
from schemas.names import BASE_MODEL
from schemas.recipe import Recipe
from schemas.stages import Stage, stage_parents
from tasks.runtime.earlier_runs import HalfDone, continued_key, earlier_run, newest_checkpoint
from tasks.runtime.keys import MADE_OF, KeyParts, StageKeys, generation_key, generations
from tasks.runtime.stage_keys import Declared, declared

ABSENT = object()


def causes(parts: KeyParts, earlier: Iterable[Manifest], roles: Iterable[str]) -> tuple[Cause, ...]:
    """Return what differs between ``parts`` and the nearest of the results ``earlier``: that with
    the fewest differences, of equals the newest.

    ``parts.parents`` lacks parents that are not made yet; they count for nothing. ``roles``: of all
    parents. Nothing where a result was made of the same.
    """
    known, unrecorded = [], False
    for manifest in earlier:
        made_of = KeyParts.from_json(manifest.metadata.get(MADE_OF))
        if made_of is None:
            unrecorded |= set(roles) <= set(manifest.parents)
        elif made_of.stage == parts.stage:
            known.append((_differences(made_of, parts), manifest.created_at))
    if not known:
        return (Cause(What.UNRECORDED if unrecorded else What.NEW),)
    least = min(len(found) for found, _ in known)
    return max((entry for entry in known if len(entry[0]) == least), key=lambda one: one[1])[0]


def _differences(before: KeyParts, after: KeyParts) -> tuple[Cause, ...]:
    parents = {role: digest for role, digest in before.parents.items() if role in after.parents}
    found = [
        *_changed(What.RECIPE, dict(leaves(before.recipe)), dict(leaves(after.recipe))),
        *_changed(What.INPUT, before.inputs, after.inputs),
        *map(partial(_of_version, after.stage), _changed(What.CODE, before.code, after.code)),
        *_changed(What.PARENT, parents, after.parents),
    ]
    return tuple(found)


def _of_version(stage: str, cause: Cause) -> Cause:
    if cause.name != VERSION:
        return cause
    return Cause(What.VERSION, why(stage, cause.before, cause.after), cause.before, cause.after)


def _changed(what: What, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Cause]:
    names = [*after, *(name for name in before if name not in after)]
    return [
        Cause(what, name, before.get(name), after.get(name))
        for name in names
        if before.get(name, ABSENT) != after.get(name, ABSENT)
    ]


PENDING = "pending"  # kind of a ref whose content is not known before its stage, the key, has run
NEW = Cause(What.NEW)


def stages_in_store(
    recipe: Recipe,
    *,
    accept_code: bool = False,
    refresh: Collection[str] = (),
    until: str | None = None,
) -> InStore:
    """Return what a run of ``recipe`` would do with each stage.

    What reads the result of a stage that would run has no key before; of it is said what else has
    changed. Names and sizes of files are checked; a run checks their content too. What cannot be
    read, the store or a file that is part of a key, is named in the result. ``accept_code``,
    ``refresh``, ``until``: as of the run. Nothing is written or started, and no stage imported.
    Raises UserError where no filesystem is installed for the store's URL.
    """
    last = None if until is None else Stage(until)
    store = ArtifactReader(recipe.store)
    try:
        if BASE_MODEL in store.kinds():
            return _Walk(recipe, store, accept_code, refresh).states(last)
    except (UserError, OSError) as error:
        return InStore(unread=str(error))
    names = list(stage_parents(recipe))
    names = names[: names.index(last) + 1] if last else names
    return InStore(tuple(StageState(name, State.RUNS, causes=(NEW,)) for name in names))


class _Walk:
    """Goes through the stages of a recipe as a run does, and looks at what is there."""

    def __init__(
        self, recipe: Recipe, store: ArtifactReader, accept_code: bool, refresh: Collection[str]
    ) -> None:
        self._recipe, self._store = recipe, store
        self._accept_code, self._refresh = accept_code, refresh
        self._found: list[StageState] = []
        self._earlier: dict[str, list[Manifest]] = {}

    def states(self, until: Stage | None) -> InStore:
        """Return the state of each stage up to ``until``."""
        known, made = declared(), dict[Stage, ArtifactRef]()
        for stage, parents in stage_parents(self._recipe).items():
            read = {role: made[parent] for role, parent in parents.items()}
            made[stage] = self._call(known[stage], read)
            if stage == until:
                break
        return InStore(tuple(self._found))

    def _call(self, stage: Declared, parents: Mapping[str, ArtifactRef]) -> ArtifactRef:
        pending = [ref.key for ref in parents.values() if ref.kind == PENDING]
        known = {role: ref for role, ref in parents.items() if ref.kind != PENDING}
        keys = stage.keys(self._recipe, known)
        if pending:
            state, made = self._unknown(stage, keys, parents, pending), None
        else:
            state, made = self._looked_up(stage, keys, parents)
        self._found.append(state)
        if made is None:
            return ArtifactRef(kind=PENDING, key=stage.stage, uri="", sha256="")
        return ArtifactRef(kind=stage.kind, key=made.key, uri="", sha256=made.sha256)

    def _unknown(
        self,
        stage: Declared,
        keys: StageKeys,
        parents: Mapping[str, ArtifactRef],
        pending: list[str],
    ) -> StageState:
        """Return the state of a stage that reads what is not made yet."""
        if stage.stage in self._refresh:
            return StageState(stage.stage, State.RUNS, causes=(Cause(What.REFRESH),))
        if found := self._causes(stage, keys, parents):
            return StageState(stage.stage, State.RUNS, causes=found)
        return StageState(stage.stage, State.MAY_RUN, note=" or ".join(dict.fromkeys(pending)))

    def _looked_up(
        self, stage: Declared, keys: StageKeys, parents: Mapping[str, ArtifactRef]
    ) -> tuple[StageState, Manifest | None]:
        """Return the state of a stage whose parents are there, and its result where it has one."""
        name, damage = stage.stage, ""
        numbers = generations(self._store, stage.kind, keys.key)
        refreshed = name in self._refresh
        for number in [] if refreshed else numbers:
            try:
                made = self._store.peek(stage.kind, generation_key(keys.key, number))
            except DamagedArtifact as error:
                damage = error.fault
            else:
                note = f"generation {number}, as a newer one is damaged" if damage else ""
                return StageState(name, State.CACHED, note=note), made
        number = max(numbers, default=0) + 1 if refreshed else 1
        other = earlier_run(
            self._store,
            stage,
            keys,
            self._recipe,
            number,
            is_made=lambda key: self._accept_code and not refreshed and self._has(stage, key),
            log=lambda sentence: None,  # of checkpoints of other runs
        )
        if isinstance(other, HalfDone):
            return self._with_other_code(stage, generation_key(keys.key, number), other)
        begun = self._own_steps(generation_key(keys.key, number), keys.total)
        if begun:
            note = self._ranks_before(generation_key(keys.key, number), max(begun))
            return StageState(name, State.CONTINUES, max(begun), note=note), None
        if other is not None and other.obstacle is None:
            note = f"of a run of {other.total} iterations"
            return StageState(name, State.CONTINUES, other.step, note=note), None
        if refreshed:
            found: tuple[Cause, ...] = (Cause(What.REFRESH),)
        elif damage:
            found = (Cause(What.DAMAGE, damage),)
        else:
            found = self._causes(stage, keys, parents)
        if not found:
            found = (Cause(What.OTHER_CODE, "its result continued with other code, as accepted"),)
        note = "" if other is None or refreshed or damage else other.sentence()
        return StageState(name, State.RUNS, causes=found, note=note), None

    def _with_other_code(
        self, stage: Declared, key: str, other: HalfDone
    ) -> tuple[StageState, Manifest | None]:
        """Return the state of a stage of which other code has left checkpoints or made more."""
        if not self._accept_code:
            refusal = (
                f"it stopped after iteration {other.step} with other code: a run is refused without"
                " --accept-code"
            )
            found = (Cause(What.OTHER_CODE, refusal),)
            return StageState(stage.stage, State.REFUSED, other.step, found), None
        continued = continued_key(key, other.key)
        if stage.stage not in self._refresh and self._has(stage, continued):
            made = self._store.peek(stage.kind, continued)
            return StageState(stage.stage, State.CACHED), made
        note = "with other code"
        return StageState(stage.stage, State.CONTINUES, other.step, note=note), None

    def _ranks_before(self, key: str, step: int) -> str:
        """Return whose training state the checkpoint ``step`` is, where the recipe has other ranks
        than wrote it."""
        made = newest_checkpoint(self._store, key, step, lambda sentence: None)
        before = None if made is None else made.metadata.get(LAYOUT)
        after = self._recipe.hardware.learner.layout(self._recipe.model.dtype)
        if before in (None, after):
            return ""
        return f"with {layout_text(after)} instead of {layout_text(before)}"

    def _own_steps(self, key: str, total: int | None) -> list[int]:
        """Return the steps of the checkpoints of a stage run, up to ``total``."""
        names = [name.rpartition("/")[2] for name in self._store.keys(KIND, f"{key}/")]
        steps = [int(name) for name in names if name.isdecimal()]
        return [step for step in steps if total is None or step <= total]

    def _has(self, stage: Declared, key: str) -> bool:
        try:
            return self._store.peek(stage.kind, key) is not None
        except DamagedArtifact:
            return False

    def _causes(
        self, stage: Declared, keys: StageKeys, parents: Mapping[str, ArtifactRef]
    ) -> tuple[Cause, ...]:
        if stage.kind not in self._earlier:
            found = self._store.manifests(lambda damage: None, kinds=[stage.kind])
            self._earlier[stage.kind] = found
        return causes(keys.parts, self._earlier[stage.kind], parents)

"""Why a stage runs: its key, part by part, beside those of the results that the store has of it."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from rlcore.dry_run.states import Cause, What
from rlcore.recipe_text import leaves
from rlcore.store.versions import VERSION, why
from schemas.artifacts import Manifest
from tasks.runtime.keys import MADE_OF, KeyParts

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

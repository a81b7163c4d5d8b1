"""Removal of what a plan names: whole artifacts, each key under its lease, manifests kept first."""

from collections.abc import Callable
from dataclasses import dataclass

from rlcore.retention.plan import DATA, Plan, Settings, make_plan, size_of
from rlcore.retention.roots import by_group, roots_seen
from rlcore.store.artifacts import ArtifactStore, LeaseError
from rlcore.store.pruned import group_of


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection removed: artifacts, their bytes, and bytes of what killed ones had left."""

    artifacts: int
    bytes: int
    leftover_bytes: int


def collect(
    store: ArtifactStore, plan: Plan, settings: Settings, log: Callable[[str], None]
) -> Collected:
    """Remove what ``plan``, made with ``settings``, names, and leftovers of killed removals.

    Before each key the roots are looked at again: what has become needed since stays. A key that
    another process works on is left, and ``log`` told. Killed anywhere, every artifact is whole or
    absent. Raises ArtifactError where the store cannot be read or written.
    """
    artifacts, size = 0, 0
    for group, planned in by_group(plan.removed).items():
        if roots_seen(store) != plan.seen:
            plan = make_plan(store, settings)
        still = {
            place: (plan.manifests[place].sha256, plan.removed[place])
            for place in planned
            if place in plan.removed
        }
        if not still:
            continue
        try:
            gone = store.prune(group, still)
        except LeaseError as held:
            log(f"{len(still)} artifacts of {group} are left: {held}")
            continue
        artifacts += len(gone)
        size += sum(map(size_of, gone))
    return Collected(artifacts, size, _clear(store, log))


def leftovers(store: ArtifactStore) -> dict[str, int]:
    """Return place -> bytes of what killed removals left, of the kinds that are removed."""
    return {place: size for kind in DATA for place, size in store.leftovers(kind).items()}


def _clear(store: ArtifactStore, log: Callable[[str], None]) -> int:
    cleared = 0
    for kind in sorted(DATA):
        for group in sorted({group_of(place.partition("/")[2]) for place in store.leftovers(kind)}):
            try:
                cleared += store.clear(kind, group)
            except LeaseError as held:
                log(f"leftovers of {kind}/{group} are left: {held}")
    with store.scratch():  # sweeps what writers that died had staged
        pass
    return cleared

"""What is kept for its own sake: champions, pins, the last runs of each recipe, what is in use.

A root keeps all that its artifacts were made from (``rlcore.results.retention``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlcore.results.run import KIND as RUNS
from rlcore.results.run import StageRecord, stage_rows
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.tombstones import group_of
from schemas.artifacts import ArtifactRef, Manifest
from schemas.errors import UserError, did_you_mean

CHAMPIONS, EXPORT = "champions", "export"  # kinds of ``retraining.champions`` and of the last stage
PINS = "pins"  # kind of the artifacts that keep another one
PINNED = "pinned"  # as what they name it


@dataclass(frozen=True, slots=True)
class Root:
    """A reason to keep artifacts. ``places``: ``<kind>/<key>`` of those that it names itself;
    ``resumes``: first parts of keys below which something is under way, or may be continued."""

    name: str
    places: frozenset[str]
    resumes: frozenset[str] = frozenset()


def pin(store: ArtifactStore, ref: ArtifactRef, *, by: str = "") -> None:
    """Keep ``ref`` and what it was made from until ``unpin``. Raises ArtifactError where it is not
    in the store."""
    store.manifest(ref)
    lineage = Lineage("", "", {PINNED: ref}, producer=by)
    key = f"{ref.kind}/{ref.key}"
    found = store.find(PINS, key)
    if found is not None and store.manifest(found).parents[PINNED].sha256 != ref.sha256:
        store.discard(PINS, key)  # what it kept was made again with other content
    store.put(PINS, key, lineage=lineage)


def unpin(store: ArtifactStore, place: str) -> None:
    """Let go of ``<kind>/<key>``. Raises UserError, with the nearest pin, where it has none."""
    pins = store.keys(PINS)
    if place not in pins:
        there = ", ".join(pins[:5]) or "none"
        raise UserError(
            f"'{place}' is not pinned in {store.root}{did_you_mean(place, pins)}; pins are on"
            f" {there}"
        )
    store.discard(PINS, place)


@dataclass(frozen=True, slots=True)
class RunOfStore:
    """A run as the store recorded it: its stages, by time."""

    id: str
    name: str
    recipe: str
    stages: tuple[StageRecord, ...]

    @property
    def began(self) -> str:
        """When its first stage began, ISO 8601."""
        return self.stages[0].began

    @property
    def completed(self) -> bool:
        """Whether it came to its end, an export."""
        return any(row.result_kind == EXPORT and row.sha256 for row in self.stages)

    @property
    def groups(self) -> frozenset[str]:
        """The first parts of the keys of its results and records."""
        keys = [key for row in self.stages for key in (row.result_key, row.records_key)]
        return frozenset(map(group_of, keys))


def runs_of(store: ArtifactStore) -> list[RunOfStore]:
    """Return the runs of a store, that which came to a stage last in front.

    Raises ArtifactError where a record of one is damaged: what it needs cannot be told then.
    """
    rows = stage_rows(store)
    if rows is None:
        return []
    stages: dict[str, list[StageRecord]] = {}
    for row in rows.iter_rows(named=True):
        stages.setdefault(row["flow_run_id"], []).append(StageRecord(**row))
    runs = [RunOfStore(id_, s[0].run, s[0].recipe, tuple(s)) for id_, s in stages.items()]
    return sorted(runs, key=lambda run: run.stages[-1].began, reverse=True)


def roots_seen(store: ArtifactStore) -> frozenset[str]:
    """Return what shows a new root. A run records its stage before it looks for the result, and who
    holds a key is found out by its lease."""
    places = [f"{kind}/{key}" for kind in (CHAMPIONS, PINS, RUNS) for key in store.keys(kind)]
    return frozenset([*places, *store.being_read()])


def find_roots(
    store: ArtifactStore,
    known: Mapping[str, Manifest],
    runs: Sequence[RunOfStore],
    keep_runs: int,
    keep_champions: int | None,
) -> list[Root]:
    """Return the roots of a store whose manifests, by place, are ``known``.

    ``keep_runs``: completed ones of each recipe; ``keep_champions``: of each name, None for all.
    """
    groups = by_group(known)
    held = store.being_written()
    roots = _champions(known, keep_champions)
    roots += [
        Root(f"pin {manifest.key}", frozenset([manifest.key]))
        for manifest in known.values()
        if manifest.kind == PINS
    ]
    roots += [root_of(run, groups) for run in _kept(runs, keep_runs, held)]
    roots += [
        Root(f"in use: {key}", frozenset(groups[key]), frozenset([key]))
        for key in sorted(held)
        if key in groups
    ]
    roots += [
        Root(
            f"is read: {place}", frozenset([place]), frozenset([group_of(place.partition("/")[2])])
        )
        for place in sorted(store.being_read())
    ]
    return roots


def by_group(places: Iterable[str]) -> dict[str, list[str]]:
    """Return places by the first part of their keys."""
    groups: dict[str, list[str]] = {}
    for place in places:
        groups.setdefault(group_of(place.partition("/")[2]), []).append(place)
    return groups


def _kept(runs: Sequence[RunOfStore], count: int, held: set[str]) -> list[RunOfStore]:
    """Return the newest ``count`` completed runs of each recipe, the others that are newer than the
    last of these, and those that a process works on."""
    completed: dict[str, int] = {}
    kept = []
    for run in runs:
        if completed.get(run.recipe, 0) < count or run.groups & held:
            kept.append(run)
        completed[run.recipe] = completed.get(run.recipe, 0) + run.completed
    return kept


def root_of(run: RunOfStore, groups: Mapping[str, Sequence[str]]) -> Root:
    """Return the root of a run: its results, and whatever it recorded on the way to them."""
    places = {f"{row.result_kind}/{row.result_key}" for row in run.stages}
    for key in {key for row in run.stages for key in (row.records_key, row.result_key)}:
        for place in groups.get(group_of(key), ()):
            if f"{place.partition('/')[2]}/".startswith(f"{key}/"):
                places.add(place)
    unfinished = {group_of(row.records_key) for row in run.stages if row.sha256 is None}
    return Root(f"run {run.name}", frozenset(places), frozenset(unfinished))


def _champions(known: Mapping[str, Manifest], count: int | None) -> list[Root]:
    """Return a root for each of the last ``count`` champions of a name: its export alone, since the
    evaluation of the champion before it would keep that one, too."""
    names: dict[str, list[tuple[int, Manifest]]] = {}
    for place, manifest in known.items():
        name, _, number = manifest.key.rpartition("/")
        if place.startswith(f"{CHAMPIONS}/") and number.isdecimal():
            names.setdefault(name, []).append((int(number), manifest))
    roots = []
    for name, entries in sorted(names.items()):
        newest = sorted(entries, key=lambda entry: entry[0], reverse=True)
        for number, manifest in newest[:count]:
            exports = [p for p in manifest.parents.values() if p.kind == EXPORT]
            places = frozenset(f"{ref.kind}/{ref.key}" for ref in exports)
            roots.append(Root(f"champion {name}/{number}", places))
    return roots

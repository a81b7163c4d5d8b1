"""What a store holds, what may be removed (what no root was made from, and can be computed
again), its removal, and a check of all digests.

Which kinds go: those that hold data, which the recipes, code and inputs on record can make again.
What says what was run, decided, found or measured (runs, iterations, recipes, metrics, evaluations,
champions, ...) is small and always stays, and so does a kind that is not listed here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from rlcore.results.provenance import RECIPE, RECIPE_FILE
from rlcore.results.roots import (
    PINS,
    Root,
    RunOfStore,
    by_group,
    find_roots,
    root_of,
    roots_seen,
    runs_of,
)
from rlcore.store.artifacts import ArtifactStore, LeaseError
from rlcore.store.checks import ArtifactError, DamagedArtifact
from rlcore.store.local import LocalFiles, links_below
from rlcore.store.reader import ArtifactReader
from rlcore.store.tombstones import group_of
from schemas.artifacts import Manifest
from schemas.errors import UserError

# Tables of RL's iterations: a root keeps them unless they are to be dropped.
OF_ITERATIONS = frozenset({"rollouts", "rewards", "advantages", "own_logprobs", "validation"})
DATA = OF_ITERATIONS | {
    *("base_model", "dataset", "preferences", "policy", "reward_model", "checkpoint", "export"),
}
MOST = 1_000_000  # of any setting: as hours a hundred years
UNNEEDED = "no root needs it"


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """What is kept. ``keep_runs``: completed ones of each recipe, and what did not complete after
    the last of them; ``keep_champions``: of each name, None for all; ``keep_rollouts``: newest
    iterations of RL with their tables, None for what the recipe says; ``least_age_h``: hours for
    which whatever was made is kept."""

    keep_runs: int = 5
    keep_champions: int | None = None
    keep_rollouts: int | None = None
    least_age_h: float = 1.0

    def __post_init__(self) -> None:
        for name in ("keep_runs", "keep_champions", "keep_rollouts", "least_age_h"):
            value, option = getattr(self, name), f"--{name.replace('_', '-')}"
            if value is not None and not 0 <= value <= MOST:
                raise UserError(f"{option} {value} is not a number from 0 to {MOST}; give one")


@dataclass(frozen=True)
class Plan:
    """``manifests``: all of the store, by place; ``parents``: what each place was made from, also
    those that were pruned; ``removed``: what no root needs, with why; ``damage``: sentences on
    manifests that cannot be read; ``seen``: the ``roots_seen`` before anything else."""

    manifests: Mapping[str, Manifest]
    parents: Mapping[str, list[str]]
    roots: list[Root]
    runs: list[RunOfStore]
    removed: Mapping[str, str]
    damage: list[str]
    seen: frozenset[str]

    def reached(self, start: Iterable[str]) -> set[str]:
        """Return the places of all artifacts that ``start`` was made from, itself included."""
        waiting, found = list(start), set[str]()
        while waiting:
            place = waiting.pop()
            if place not in found:
                found.add(place)
                waiting += self.parents.get(place, ())
        return found & self.manifests.keys()

    def run_of(self, place: str) -> str | None:
        """Return the newest run that has ``place`` among its results or records."""
        group = group_of(place.partition("/")[2])
        return next((run.name for run in self.runs if group in run.groups), None)

    def bytes_of(self, places: Iterable[str]) -> int:
        """Return the bytes of the files of artifacts, as recorded."""
        return sum(size_of(self.manifests[place]) for place in places)


def size_of(manifest: Manifest) -> int:
    """Return the bytes of an artifact's files."""
    return sum(entry.bytes for entry in manifest.files.values())


def make_plan(store: ArtifactStore, settings: RetentionSettings) -> Plan:
    """Return what of ``store`` goes and what does not. Changes nothing.

    Raises UserError where there is no root, ArtifactError where a manifest is damaged: what was
    made from what cannot be told then.
    """
    plan = survey(store, settings)
    if plan.damage:
        raise ArtifactError(
            f"what the artifacts of {store.root} need cannot be told: {plan.damage[0]}; rl-pipeline"
            " store verify names all that is damaged: delete it, then try again"
        )
    if not plan.roots:
        raise UserError(
            f"{store.root} has no root: no champion, no pin, and no run among the last"
            f" {settings.keep_runs} of a recipe, so that all of it would go; pin what is to stay"
            " (rl-pipeline store pin REF), or raise --keep-runs"
        )
    return plan


def survey(store: ArtifactStore, settings: RetentionSettings) -> Plan:
    """Return the plan whatever it says, to be looked at."""
    seen, damage = roots_seen(store), list[str]()
    manifests = {f"{m.kind}/{m.key}": m for m in store.manifests(damage.append)}
    runs = runs_of(store)
    roots = find_roots(store, manifests, runs, settings.keep_runs, settings.keep_champions)
    plan = Plan(manifests, _parents(store, manifests), roots, runs, {}, damage, seen)
    young = _young(manifests, settings.least_age_h)
    needed = plan.reached([*young, *(place for root in roots for place in root.places)])
    removed = {
        place: UNNEEDED
        for place, manifest in manifests.items()
        if manifest.kind in DATA and place not in needed
    }
    removed |= _dropped(store, manifests, roots, settings.keep_rollouts, removed.keys() | young)
    return replace(plan, removed=removed)


def _parents(store: ArtifactStore, manifests: Mapping[str, Manifest]) -> dict[str, list[str]]:
    """Return place -> places that it was made from, also of what was pruned: a second collection
    keeps what the first one did."""
    parents = {
        place: [f"{ref.kind}/{ref.key}" for ref in manifest.parents.values()]
        for place, manifest in manifests.items()
    }
    for (kind, key, _), pruned in store.pruned.below().items():
        if (place := f"{kind}/{key}") not in manifests:
            parents.setdefault(place, []).extend(
                f"{ref['kind']}/{ref['key']}" for ref in pruned.fields["parents"].values()
            )
    return parents


def _young(manifests: Mapping[str, Manifest], hours: float) -> set[str]:
    since = datetime.now(UTC) - timedelta(hours=hours)
    return {
        place
        for place, manifest in manifests.items()
        if manifest.kind in DATA and datetime.fromisoformat(manifest.created_at) > since
    }


def _dropped(
    store: ArtifactStore,
    manifests: Mapping[str, Manifest],
    roots: Iterable[Root],
    keep: int | None,
    without: Iterable[str],
) -> dict[str, str]:
    """Return the tables of iterations that are older than the newest ``keep`` of their run, or than
    its recipe keeps; never of one that is under way, and none that is itself pinned."""
    passed = {*without, *(m.key for m in manifests.values() if m.kind == PINS)}
    resumes = {group for root in roots for group in root.resumes}
    tables = [
        (place, manifest, _iteration(manifest.key))
        for place, manifest in manifests.items()
        if manifest.kind in OF_ITERATIONS and group_of(manifest.key) not in resumes
    ]
    newest: dict[str, int] = {}
    for _, manifest, number in tables:
        run = manifest.key.rpartition("/")[0]
        newest[run] = max(newest.get(run, 0), number)
    limits: dict[str, int | None] = {}
    if keep is None:
        limits = {d: _keep_rollouts(store, d) for d in {m.recipe_digest for _, m, _ in tables}}
    found = {}
    for place, manifest, number in tables:
        limit = limits.get(manifest.recipe_digest, keep)
        if limit is None or place in passed:
            continue
        if number <= newest[manifest.key.rpartition("/")[0]] - limit:
            said = "--drop-rollouts" if keep == 0 else f"keep_rollouts = {limit}"
            found[place] = f"tables of iterations are dropped ({said})"
    return found


def _iteration(key: str) -> int:
    """Return the iteration of ``<run>/000007`` or of its further round ``<run>/000007-1``."""
    number = key.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdecimal() else 0


def _keep_rollouts(store: ArtifactStore, digest: str) -> int | None:
    """Return ``rl.checkpoint.keep_rollouts`` of a recorded recipe; None where it does not say."""
    ref = store.find(RECIPE, digest) if digest else None
    if ref is None:
        return None
    text = (store.directory(ref) / RECIPE_FILE).read_text(encoding="utf-8")
    return yaml.safe_load(text)["rl"]["checkpoint"].get("keep_rollouts")


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection removed: artifacts, their bytes, and bytes of what killed ones had left."""

    artifacts: int
    bytes: int
    leftover_bytes: int


def collect(
    store: ArtifactStore, plan: Plan, settings: RetentionSettings, log: Callable[[str], None]
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


LEFTOVERS = "leftovers"
ALWAYS, NEEDED, TABLES = "always", "while a root needs it", "while a root needs it, or to the limit"


def by_kind(store: ArtifactStore, plan: Plan) -> list[dict[str, Any]]:
    """Return a row per kind, the largest first, and one of what killed removals left, if any."""
    rows = []
    for kind in sorted({manifest.kind for manifest in plan.manifests.values()}):
        places = [place for place, m in plan.manifests.items() if m.kind == kind]
        going = [place for place in places if place in plan.removed]
        stays = TABLES if kind in OF_ITERATIONS else NEEDED if kind in DATA else ALWAYS
        rows.append((kind, len(places), plan.bytes_of(places), plan.bytes_of(going), stays))
    rows.sort(key=lambda row: -row[2])
    if left := leftovers(store):
        size = sum(left.values())
        rows.append((LEFTOVERS, len(left), size, size, "of removals that were killed"))
    columns = ("kind", "artifacts", "bytes", "reclaimable", "stays")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def by_run(plan: Plan) -> list[dict[str, Any]]:
    """Return a row per run, the newest first. ``bytes``: of all that it needs; ``alone``: of what
    no other run and no other root needs; ``reclaimable``: of what goes now."""
    groups = by_group(plan.manifests)
    own = {run.id: root_of(run, groups) for run in plan.runs}
    names = {root.name for root in own.values()}
    needs = {id_: plan.reached(root.places) for id_, root in own.items()}
    users = Counter(place for places in needs.values() for place in places)
    others = plan.reached(p for root in plan.roots if root.name not in names for p in root.places)
    kept = {root.name for root in plan.roots}
    rows = []
    for run in plan.runs:
        places = needs[run.id]
        alone = [place for place in places if users[place] == 1 and place not in others]
        rows.append(
            {
                "recipe": run.recipe,
                "run": run.name,
                "began": run.began,
                "artifacts": len(places),
                "bytes": plan.bytes_of(places),
                "alone": plan.bytes_of(alone),
                "reclaimable": plan.bytes_of(places & plan.removed.keys()),
                "kept": own[run.id].name in kept,
            }
        )
    return rows


@dataclass(frozen=True, slots=True)
class Checked:
    """An artifact that was read: bytes of its files, and what is wrong with it, if anything."""

    kind: str
    key: str
    bytes: int
    fault: str | None


def check_all(store: ArtifactReader) -> Iterator[Checked]:
    """Yield every artifact once it was read: manifest and its seal, names, sizes and digests of
    files. Of a bucket each is downloaded again, into a folder that is removed after it.

    Raises ArtifactError where the store cannot be read.
    """
    for kind in store.kinds():
        for key in store.keys(kind):
            with TemporaryDirectory(prefix="rl-pipeline-") as folder:
                yield _check(ArtifactReader(store.root, cache=Path(folder)), kind, key)
    links = [] if "://" in store.root else links_below(LocalFiles(Path(store.root)))
    for link in links:
        kind, _, key = link.partition("/")
        fault = (
            f"{store.root}/{link} is a symbolic link, which nothing follows; put the folder there"
        )
        yield Checked(kind, key, 0, fault)


def _check(store: ArtifactReader, kind: str, key: str) -> Checked:
    try:
        manifest = store.peek(kind, key)
        if manifest is None:
            return Checked(kind, key, 0, None)  # removed meanwhile, as a whole
        store.verify(manifest.ref())
        store.check_seal(manifest.ref())
    except DamagedArtifact as damage:
        return Checked(kind, key, 0, damage.fault)
    except ArtifactError:
        if store.peek(kind, key) is None:
            return Checked(kind, key, 0, None)
        raise
    return Checked(kind, key, size_of(manifest), None)

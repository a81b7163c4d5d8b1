"""How many bytes a store holds, by kind and by run, and how many of them could go."""

from collections import Counter
from typing import Any

from rlcore.retention.collect import leftovers
from rlcore.retention.plan import DATA, OF_ITERATIONS, Plan
from rlcore.retention.roots import by_group, root_of
from rlcore.store.artifacts import ArtifactStore

LEFTOVERS = "leftovers"
ALWAYS, NEEDED, TABLES = "always", "while a root needs it", "while a root needs it, or to the limit"


def by_kind(store: ArtifactStore, plan: Plan) -> list[dict[str, Any]]:
    """Return a row per kind, the largest first, and one of what killed removals left, if any."""
    rows = []
    for kind in sorted({manifest.kind for manifest in plan.manifests.values()}):
        places = [place for place, m in plan.manifests.items() if m.kind == kind]
        going = [place for place in places if place in plan.removed]
        stays = TABLES if kind in OF_ITERATIONS else NEEDED if kind in DATA else ALWAYS
        rows.append(_row(kind, len(places), plan.bytes_of(places), plan.bytes_of(going), stays))
    rows.sort(key=lambda row: -row["bytes"])
    left = leftovers(store)
    if left:
        size = sum(left.values())
        rows.append(_row(LEFTOVERS, len(left), size, size, "of removals that were killed"))
    return rows


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


def _row(kind: str, artifacts: int, size: int, going: int, stays: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "artifacts": artifacts,
        "bytes": size,
        "reclaimable": going,
        "stays": stays,
    }

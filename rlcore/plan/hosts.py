"""Which host of an existing Ray cluster holds what: checked, and told, before a run starts."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import psutil

from rlcore.cluster.hosts import Host, check_store, own_first, place
from rlcore.cluster.types import Placement
from rlcore.plan.batches import worker_counts
from rlcore.rl.specs import engine_share, learner_placement
from schemas.recipe import Recipe


def layout_lines(recipe: Recipe, hosts: Sequence[Host]) -> list[str]:
    """Return a line per host that holds learners or engines of a run, and how weights reach them;
    nothing where the cluster has one.

    Raises UserError, as the run would, where they do not fit ``hosts`` or the store is a folder of
    one of them.
    """
    if len(hosts) < 2:
        return []
    hosts = own_first(hosts, _own(hosts))
    device = recipe.hardware.device
    if device == "auto":
        device = "cuda" if any(host.gpus for host in hosts) else "cpu"
    ranks, engine = learner_placement(recipe, device), engine_share(recipe, device)
    held: dict[str, list[str]] = defaultdict(list)
    gpus: dict[str, float] = defaultdict(float)

    def put(placement: Placement, count: int, what: str) -> list[str]:
        placed = place(hosts, placement, count, gpus_used=gpus, engines=Counter())
        for number, one in enumerate(placed):
            held[one.host].append(f"{what} {number}")
            gpus[one.host] += one.gpus
        return [one.host for one in placed]

    counts = worker_counts(recipe)
    lies = {role: put(ranks, count, f"{role} rank") for role, count in counts.items()}
    engines = put(engine, recipe.hardware.rollout.engines, "rollout engine")
    check_store(recipe.store, {hosts[0].address, *held})
    lines = [f"{h.address}: {', '.join(held[h.address])}" for h in hosts if h.address in held]
    first = lies["policy"][0]
    others = ", ".join(sorted(set(engines) - {first}))
    store = f", through Ray's object store to {others}" if others else ""
    return [*lines, f"weights: in memory on {first}{store}"]


def _own(hosts: Sequence[Host]) -> str:
    """Return which of their addresses is one of this machine; "" where none is."""
    here = {one.address for found in psutil.net_if_addrs().values() for one in found}
    return next((host.address for host in hosts if host.address in here), "")

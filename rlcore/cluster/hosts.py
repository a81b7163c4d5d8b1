"""The hosts of a Ray cluster and what lies on which: decided by a rule, before anything starts.

Ranks of a learner are packed: the flow's own host is filled first, then the next. Engines are
spread. On CPUs a host holds as many ranks as its cores have room for their threads, and more where
all are full, since the phases alternate; GPUs are never shared beyond what their shares add up to.
All other workers run what users bring and stay on the flow's own host.
"""

import hashlib
import platform
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from rlcore.cluster.types import POLL_S, Placement
from rlcore.store.fingerprint import LIBRARIES, ROOT
from schemas.errors import UserError

CONNECT_S = 3.0
SILENT_S = 10.0  # without an answer, after which a host counts as lost
_OURS = ("rlcore", "schemas")
_ENOUGH = 1e-9  # shares of a GPU are sums of decimals
CODE = "code of rl-pipeline"


@dataclass(frozen=True, slots=True)
class Host:
    """A node of the cluster: its id of Ray's, where its raylet listens, what it has."""

    node: str
    address: str
    port: int
    cpus: float
    gpus: float


def own_first(hosts: Iterable[Host], own: str) -> list[Host]:
    """Return ``hosts`` by address, that of the flow's own address before the others."""
    return sorted(hosts, key=lambda host: (host.address != own, host.address))


def place(
    hosts: Sequence[Host],
    placement: Placement,
    count: int,
    *,
    gpus_used: Mapping[str, float],
    engines: Mapping[str, int],
) -> list[Placement]:
    """Return ``placement`` with a host for each of ``count`` workers of one pool.

    ``hosts``: the flow's own first. ``gpus_used``, ``engines``: by address, what lies there.
    Raises UserError where no host holds one of them, or all together do not hold ``count``.
    """
    allowed = hosts if placement.threads else hosts[:1]
    _check_bundle(allowed, placement)
    taken: Counter[str] = Counter()

    def has_room(host: Host) -> bool:
        held = gpus_used.get(host.address, 0.0) + (taken[host.address] + 1) * placement.gpus
        return not placement.gpus or held <= host.gpus + _ENOUGH

    placed = []
    for _ in range(count):
        room = [host for host in allowed if has_room(host)]
        if not room:
            raise UserError(_too_many(allowed, placement, count, gpus_used))
        if placement.spread:
            chosen = min(room, key=lambda h: engines.get(h.address, 0) + taken[h.address])
        else:
            chosen = _packed(room, placement, taken)
        taken[chosen.address] += 1
        placed.append(replace(placement, host=chosen.address))
    return placed


def _packed(room: Sequence[Host], placement: Placement, taken: Mapping[str, int]) -> Host:
    for host in room:
        if placement.gpus or (taken[host.address] + 1) * placement.threads <= host.cpus:
            return host
    return min(room, key=lambda host: (taken[host.address] + 1) / max(host.cpus, 1.0))


def _check_bundle(hosts: Sequence[Host], placement: Placement) -> None:
    section = "hardware.rollout" if placement.spread else "hardware.learner"
    key = "gpus_per_engine" if placement.spread else "gpus_per_rank"
    asked = [(f"{section}.{key}", placement.gpus, "GPUs", [h.gpus for h in hosts])]
    if len(hosts) > 1 and not placement.gpus:
        asked.append((f"{section}.threads", placement.threads, "CPUs", [h.cpus for h in hosts]))
    for name, needed, what, there in asked:
        if needed > max(there) + _ENOUGH:
            largest = hosts[there.index(max(there))].address
            raise UserError(
                f"{name} = {needed:g} is more than any node of the Ray cluster holds: the largest,"
                f" {largest}, has {max(there):g} {what}; lower it, or add a larger node"
            )


def _too_many(
    hosts: Sequence[Host], placement: Placement, count: int, used: Mapping[str, float]
) -> str:
    free = ", ".join(f"{h.gpus - used.get(h.address, 0.0):g} on {h.address}" for h in hosts)
    kind, key = ("engines", "rollout.engines") if placement.spread else ("ranks", "learner.ranks")
    return (
        f"hardware.{key}: {count} {kind} of {placement.gpus:g} GPUs each do not fit the Ray"
        f" cluster, which has {free} free; lower hardware.{key}, or add nodes"
    )


def check_store(store: str, addresses: Iterable[str]) -> None:
    """Raise UserError where workers lie on several of ``addresses`` and ``store`` is a folder,
    which is another one on each."""
    used = sorted(set(addresses))
    if len(used) > 1 and "://" not in store.removeprefix("file://"):
        raise UserError(
            f"store = '{store}' is a folder of one host, and workers of this run lie on"
            f" {', '.join(used)}; set store to a bucket that all reach, or lower"
            " hardware.learner.ranks and hardware.rollout.engines to what one host holds"
        )


def check_token(address: str, hosts: Sequence[Host]) -> None:
    """Raise UserError where the ``hosts`` of a cluster without a token are several."""
    if len(hosts) > 1:
        raise UserError(
            f"hardware.ray_address = '{address}' is a cluster of {len(hosts)} nodes that asks for"
            " no token, so whoever reaches one can run commands on all; start all with"
            " RAY_AUTH_MODE=token (docs/do/scale.md)"
        )


class Lifeline:
    """Whether the raylet of a host is there: asked of the host, as Ray takes a minute."""

    def __init__(self, host: Host) -> None:
        self._where = host.address, host.port
        self._silent_since: float | None = None

    def is_lost(self, *, settled: bool = False) -> bool:
        """Ask: a host that refuses is lost, one that is silent after ``SILENT_S``. ``settled``:
        wait for that long, until it is known."""
        while True:
            try:
                socket.create_connection(self._where, timeout=CONNECT_S).close()
            except ConnectionRefusedError:
                return True
            except OSError:
                now = time.monotonic()
                self._silent_since = now if self._silent_since is None else self._silent_since
                if now - self._silent_since >= SILENT_S:
                    return True
            else:
                self._silent_since = None
            if not settled or self._silent_since is None:
                return False
            time.sleep(POLL_S)


def software() -> dict[str, str]:
    """Return what results depend on and this process runs: name -> version, or digest of code."""
    found = {"Python": platform.python_version(), "ray": version("ray")}
    for name, distributions in LIBRARIES.items():
        for distribution in distributions:
            with suppress(PackageNotFoundError):
                found[name] = version(distribution)
    digest = hashlib.sha256()
    for path in sorted(path for folder in _OURS for path in (ROOT / folder).rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return {**found, CODE: digest.hexdigest()[:12]}


def check_software(address: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Raise UserError with the first difference where a node runs other software than the flow."""
    for name in dict.fromkeys([*ours, *theirs]):
        there, here = theirs.get(name, "none"), ours.get(name, "none")
        if there != here:
            raise UserError(
                f"node {address} runs {name} {there}, the flow {here}; install the same on all"
                " nodes (infra/constraints.txt), and start Ray there again"
            )

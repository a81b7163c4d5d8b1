"""The hosts of an existing cluster of Ray, as one run uses them: where its workers lie, what their
calls carry, and which of the hosts is lost."""

import os
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlcore.cluster.host_settings import OFF
from rlcore.cluster.hosts import (
    Host,
    Lifeline,
    check_software,
    check_store,
    own_first,
    place,
    software,
)
from rlcore.cluster.travel import LOAD, Stored, Written, named, sent, take_home
from rlcore.cluster.types import Placement, WorkerDied, WorkerTimeout
from rlcore.cluster.watch import logged
from schemas.errors import UserError

# Forwarded to the nodes of an existing cluster. Ray logs what it forwards, so it includes no
# secret: the nodes need their own HF_TOKEN.
_FORWARDED = ("HF_HOME", "HF_HUB_OFFLINE", "PYTHONPATH")
# Variables of the store: handed over as arguments of a call, which are not logged.
_OF_STORES = ("AWS_", "FSSPEC_")
_ASK_S = 5.0


def forwarded(*more: str) -> dict[str, str]:
    """Return the variables, ``more`` among them, that a process on an existing cluster gets."""
    return {key: os.environ[key] for key in (*_FORWARDED, *more) if key in os.environ}


def store_variables() -> dict[str, str]:
    """Return the variables with which a worker reaches the store."""
    return {key: value for key, value in os.environ.items() if key.startswith(_OF_STORES)}


def free_port() -> str:
    """Return a free port of the node that runs this, as other nodes see it: tcp://host:port."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"tcp://{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"


def joined_hosts() -> list[Host]:
    """Return the nodes of the cluster that this process has joined, its own first."""
    context = ray.get_runtime_context()
    found = nodes_at(context.gcs_address)
    return own_first(found, next(h.address for h in found if h.node == context.get_node_id()))


def nodes_at(address: str) -> list[Host]:
    """Return the nodes that are alive of the cluster at ``address``."""
    nodes: Any = GcsClient(address).get_all_node_info(timeout=_ASK_S)
    found = []
    for node, info in nodes.items():
        if not info.state:  # ALIVE is 0
            cpus, gpus = (info.resources_total.get(name, 0.0) for name in ("CPU", "GPU"))
            where = info.node_manager_address, info.node_manager_port
            found.append(Host(node.hex(), *where, cpus, gpus))
    return found


class RunHosts:
    """The hosts of an existing cluster that has several, as one run uses them.

    ``split``: workers lie on another than the flow's own, so that calls carry what they name.
    """

    def __init__(self, hosts: Sequence[Host], store: str, start_s: float) -> None:
        """``hosts``: the flow's own first. ``store``: the run's; ``start_s`` bounds what is asked
        of a node."""
        self.own, self.split = hosts[0].address, False
        self._hosts = {host.address: host for host in hosts}
        self._lifelines = {host.address: Lifeline(host) for host in hosts[1:]}
        self._store, self._start_s = store, start_s
        self._software = software()
        self._checked = {self.own}
        self._offered: tuple[Any, Any] | None = None  # an update, and what it became

    def place(
        self, placement: Placement, count: int, living: Sequence[Placement]
    ) -> list[Placement]:
        """Return ``placement`` with a host for each of ``count`` workers beside the ``living``.

        Raises UserError where they do not fit, the store is a folder, or a host has other software.
        """
        gpus_used: dict[str, float] = defaultdict(float)
        for one in living:
            gpus_used[one.host] += one.gpus
        engines = Counter(one.host for one in living if one.spread)
        lost = {a for a, line in self._lifelines.items() if line.is_lost(settled=True)}
        there = [host for address, host in self._hosts.items() if address not in lost]
        placed = place(there, placement, count, gpus_used=gpus_used, engines=engines)
        used = {one.host for one in placed}
        check_store(self._store, {self.own, *used})
        for address in sorted(used - self._checked):
            self._check(address)
        self.split = self.split or bool(used - {self.own})
        return placed

    def _check(self, address: str) -> None:
        try:
            theirs = self.ask(address, software)
        except WorkerTimeout:
            raise
        except Exception as error:  # what it lacks is in Ray's own words
            raise UserError(
                f"node {address} cannot run the code of rl-pipeline"
                f" ({' '.join(str(error).split())[-200:]}); install it there as here"
            ) from error
        check_software(address, theirs, self._software)
        self._checked.add(address)

    def ask(self, address: str, function: Callable[[], Any]) -> Any:
        """Return what ``function`` returns in a process of a host, within ``start_s`` seconds."""
        runtime_env = {"env_vars": forwarded(*OFF)}
        asked = ray.remote(function).options(
            num_cpus=0, runtime_env=runtime_env, **self.on(address)
        )
        try:
            return ray.get(asked.remote(), timeout=self._start_s)
        except GetTimeoutError:
            raise WorkerTimeout(
                f"node {address} did not answer within {self._start_s:.0f} s; raise"
                " hardware.timeouts.start_s or look at Ray's logs there"
            ) from None

    def on(self, address: str) -> dict[str, Any]:
        """Return the options of Ray that place something on a host."""
        node = self._hosts[address].node
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}

    def carried(
        self, host: str, method: str, args: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], dict[str, Stored] | None, Callable[[Any], Any]]:
        """Return the arguments of a call to a worker on ``host``, the folders that they name
        (``travel.arrived``), and what takes its answer."""
        if not self.split or host == self.own:
            return args, {} if self.split else None, lambda answer: answer
        if method == LOAD:
            args = (self._offer(args[0]),)

        def take(answer: Any) -> Any:
            return take_home(answer, args[0]) if isinstance(answer, Written) else answer

        return args, named(args), take

    def _offer(self, update: Any) -> Any:
        """Return ``update`` with its bytes; those of a file that this process wrote are sent once,
        and let go with the next update."""
        if update.parts:
            self._offered = None
            return update
        if self._offered is None or self._offered[0] is not update:
            self._offered = update, replace(update, host=self.own, parts=sent(update.path))
        return self._offered[1]

    def require(self, address: str, meanwhile: str) -> None:
        """Raise WorkerDied where a host, which is not the flow's own, is lost."""
        if self._lifelines[address].is_lost():
            lost = f"node {address} of the Ray cluster is lost: its raylet does not answer"
            raise logged(WorkerDied, f"{lost}; {meanwhile}")

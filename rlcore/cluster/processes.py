"""The processes that workers run in: started before they are needed, and reused by later
workers."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from threading import Event, Lock

from rlcore.cluster.activity import activity
from rlcore.cluster.types import Cluster, Host, Pending, Placement, WorkerTimeout, gather
from rlcore.cluster.watch import LOOK_S
from schemas.hardware import HardwareSection


@dataclass(frozen=True, slots=True)
class Layout:
    """``count`` processes for objects of one class, "package.module:Class"."""

    target: str
    placement: Placement
    count: int


@dataclass(frozen=True, slots=True)
class Hosts:
    """The processes of one layout; ranks of one process group stay together."""

    layout: Layout
    hosts: list[Host]


class Processes:
    """Owns the cluster of one run, which starts when it is first asked for."""

    def __init__(self, hardware: HardwareSection) -> None:
        self._hardware = hardware
        self._lock = Lock()
        # The thread lives as long as the cluster: Linux ends Ray's processes together with the
        # thread that started them. It is never the main one, where Ray would replace the handler
        # of SIGTERM that cancels a run.
        self._owner = ThreadPoolExecutor(1, "cluster")
        self._cluster: Future[Cluster] | None = None
        self._starter = ThreadPoolExecutor(1, "start-ahead")
        self._ahead: dict[str, Future[None]] = {}
        self._in_need = Event()  # of the processes that start early
        self._idle: list[Hosts] = []

    @property
    def cluster(self) -> Cluster:
        """Return the cluster, starting it when this is the first use."""
        with self._lock:
            if self._cluster is None:
                _import(self._hardware)
                self._cluster = self._owner.submit(_start_cluster, self._hardware)
        return self._cluster.result()

    def close(self) -> None:
        """End every process, also while they start."""
        self._in_need.set()
        self._starter.shutdown(wait=False, cancel_futures=True)
        starting = [*self._ahead.values(), *([self._cluster] if self._cluster else [])]
        wait(starting, self._hardware.timeouts.start_s)  # their errors matter no longer
        cluster, self._cluster = self._cluster, None
        if cluster is not None and cluster.done() and cluster.exception() is None:
            cluster.result().close()
        self._owner.shutdown(wait=False)

    def start_ahead(
        self, what: str, layout: Callable[[], Layout], *, one_by_one: bool = False
    ) -> None:
        """Start the processes of ``layout`` in the background: they import their libraries.

        Returns at once; a second call for ``what`` does nothing. ``take`` raises what failed.
        ``one_by_one``: start one process after the other until any are needed, so that the later
        ones find the bytecode that the first compiled, and the caller keeps a CPU core.
        """
        if what in self._ahead or self._hardware.cluster == "in_process":
            return
        self._in_need.clear()
        _import(self._hardware)

        def start() -> None:
            self._idle.append(self._start(layout(), what, one_by_one=one_by_one))

        self._ahead[what] = self._starter.submit(start)

    def take(self, layout: Layout, names: list[str]) -> Hosts:
        """Return processes of ``layout``, called ``names``; idle ones of that layout are reused."""
        self._in_need.set()
        with activity(f"the start of the process of {names[0]}"):
            for started in self._ahead.values():
                started.result()
        idle = [hosts for hosts in self._idle if hosts.layout == layout]
        if idle:
            self._idle.remove(idle[0])
        taken = idle[0] if idle else self._start(layout, names[0])
        for host, name in zip(taken.hosts, names, strict=True):
            host.name = name
        return taken

    def give_back(self, hosts: Hosts) -> None:
        """Free what the processes hold; the next worker of the same layout reuses them."""
        gather([host.clear() for host in hosts.hosts], self._hardware.timeouts.start_s)
        self._idle.append(hosts)

    def _start(self, layout: Layout, name: str, *, one_by_one: bool = False) -> Hosts:
        self.cluster.require_gpus(layout.placement.gpus * layout.count)
        hosts: list[Host] = []
        for _ in range(layout.count):
            host = self.cluster.host(layout.target, name=name, placement=layout.placement)
            hosts.append(host)
            if one_by_one:
                self._wait_while_idle(host.clear())
        return Hosts(layout, hosts)

    def _wait_while_idle(self, loaded: Pending) -> None:
        while not self._in_need.is_set():
            with suppress(WorkerTimeout):
                loaded.result(LOOK_S)
                return


def _import(hardware: HardwareSection) -> None:
    """Import what the cluster needs in the caller's thread: the import parses Python, and when two
    threads do so at once CPython fails one of them (SystemError: AST constructor recursion depth
    mismatch, python/cpython#106905)."""
    if hardware.cluster != "in_process":
        import_module("rlcore.cluster.ray_cluster")


def _start_cluster(hardware: HardwareSection) -> Cluster:
    if hardware.cluster == "in_process":
        from rlcore.cluster.in_process import InProcessCluster

        return InProcessCluster()
    from rlcore.cluster.ray_cluster import RayCluster

    timeouts = hardware.timeouts
    return RayCluster(hardware.ray_address, stall_s=timeouts.stall_s, start_s=timeouts.start_s)

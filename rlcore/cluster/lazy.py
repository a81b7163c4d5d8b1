"""The cluster of one run, which starts when it is first asked for."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock

from rlcore.cluster.types import Cluster
from schemas.hardware import HardwareSection


class LazyCluster:
    """Starts, holds and ends the cluster of ``hardware``; ``store``: the run's, from which its
    hosts fetch artifacts."""

    def __init__(self, hardware: HardwareSection, store: str = "") -> None:
        self._hardware, self._store = hardware, store
        self._lock = Lock()
        # The thread lives as long as the cluster: Linux ends Ray's processes together with the
        # thread that started them. It is never the main one, where Ray would replace the handler
        # of SIGTERM that cancels a run.
        self._owner = ThreadPoolExecutor(1, "cluster")
        self._started: Future[Cluster] | None = None

    def get(self) -> Cluster:
        """Return the cluster, starting it when this is the first use."""
        with self._lock:
            if self._started is None:
                self._started = self._owner.submit(_start, self._hardware, self._store)
        return self._started.result()

    def close(self) -> None:
        """End every process, also while they start."""
        started, self._started = self._started, None
        if started is not None:
            wait([started], self._hardware.timeouts.start_s)  # its error matters no longer
            if started.done() and started.exception() is None:
                started.result().close()
        self._owner.shutdown(wait=False)


def _start(hardware: HardwareSection, store: str) -> Cluster:
    # Each where it is used: rlcore runs where Ray is not installed, and a flow without torch.
    if hardware.cluster == "in_process":
        from rlcore.cluster.in_process import InProcessCluster

        return InProcessCluster()
    from rlcore.cluster.ray_cluster import RayCluster

    timeouts = hardware.timeouts
    return RayCluster(
        hardware.ray_address, stall_s=timeouts.stall_s, start_s=timeouts.start_s, store=store
    )

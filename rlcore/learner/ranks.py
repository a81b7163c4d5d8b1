"""The ranks of a learner as workers that are called together."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from rlcore.cluster.activity import activity
from rlcore.cluster.types import Pending, Worker, as_completed
from rlcore.learner.memory import told_apart

Wait = Callable[[], list[Any]]  # for the results of a call, in rank order


class Ranks:
    """One worker per rank, in rank order, each holding a ``Learner``.

    Every call reaches every rank, which answers its calls in order, and waits at most ``timeout_s``
    seconds for all of them; a rank's error is raised unchanged, but for memory that ran out
    (``memory.told_apart``). ``start_s``: seconds that the first call allows for building the ranks;
    None when they are built.
    """

    def __init__(
        self, workers: Sequence[Worker], *, timeout_s: float, start_s: float | None
    ) -> None:
        self._workers = list(workers)
        self._timeout_s = timeout_s
        self._start_s = start_s
        self._saving: _Once | None = None

    def __len__(self) -> int:
        return len(self._workers)

    def ready(self) -> None:
        """Wait until every rank is built; raises what a rank's constructor raised."""
        if self._start_s is not None:
            pendings = [worker.start("stamp") for worker in self._workers]
            with activity(f"the start of {self._workers[0].name} and its ranks"):
                self._collect("its start", pendings, self._start_s)
            self._start_s = None

    def call(self, method: str, arguments: Sequence[tuple] | None = None, **same: Any) -> list[Any]:
        """Call ``method`` on every rank; return the results in rank order.

        ``arguments``: of each rank; ``same``: keywords of all.
        """
        return self.start(method, arguments, **same)()

    def start(self, method: str, arguments: Sequence[tuple] | None = None, **same: Any) -> Wait:
        """Start ``call``; return a function that waits for its results.

        The functions of several calls must be called in the order of the starts.
        """
        self.ready()
        if self._saving is not None:
            self._saving.wait()
            self._saving = None
        with told_apart(method):  # a worker of this process does it now
            pendings = [
                worker.start(method, *values, **same)
                for worker, values in zip(self._workers, arguments or [()] * len(self), strict=True)
            ]
        return lambda: self._collect(method, pendings, self._timeout_s)

    def start_save(self, directory: str | Path) -> Callable[[], None]:
        """Start ``Learner.save``; return a function that waits for it, in any thread.

        Calls made meanwhile wait for it first: while a rank saves, its silence would count as that
        of the next call.
        """
        wait = self.start("save", [(str(directory),)] * len(self))
        saving = _Once(wait)
        self._saving = saving
        return saving.result

    def stop(self) -> None:
        """End every rank's process."""
        for worker in self._workers:
            worker.stop()

    def _collect(self, method: str, pendings: Sequence[Pending], timeout_s: float) -> list[Any]:
        """Return the results in rank order; the first rank to fail ends the wait for the others."""
        names = [f"learner rank {rank} of {len(pendings)}" for rank in range(len(pendings))]
        with told_apart(method):
            answers = dict(as_completed(pendings, timeout_s, names=names, method=method))
        return [answers[rank] for rank in range(len(pendings))]


class _Once:
    """A wait that several threads share: the first does it, and all get its error."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait, self._lock = wait, Lock()
        self._over = False
        self._error: Exception | None = None

    def wait(self) -> None:
        """Return once it is over, however it ended."""
        with self._lock:
            if self._over:
                return
            try:
                self._wait()
            except Exception as error:  # noqa: BLE001  kept for ``result``
                self._error = error
            self._over = True

    def result(self) -> None:
        """Return once it is over. Raises the error that it ended with."""
        self.wait()
        if self._error is not None:
            raise self._error

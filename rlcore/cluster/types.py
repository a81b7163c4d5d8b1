"""Protocols of a cluster and of the workers it holds, and the errors a wait can end with."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from schemas.errors import UserError

# What CUDA, the CPU allocators of torch, C++ and numpy, the kernel and Ray say.
_SAID = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "unable to allocate"),
    *("bad_alloc", "low on memory"),
)


def ran_out(error: BaseException | str) -> bool:
    """Return whether ``error``, or a line of one, says that memory ran out, here or in a worker."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or any(words in said for words in _SAID)


POLL_S = 0.5  # wait for one worker before the others are checked
DEATH_S = 5.0  # until it is known that a worker died


class WorkerError(RuntimeError):
    """A worker died or did not answer; the message names worker, method and limit."""


class WorkerTimeout(WorkerError):
    """A worker did not answer within its limit."""


class WorkerHung(WorkerError):
    """A worker is alive, and its call makes no progress."""


class WorkerDied(WorkerError):
    """A worker's process has ended."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What one worker needs: whole or fractional GPUs, and environment set before its imports.

    ``threads``: of a rank or an engine, which may lie on any host of the cluster; 0: of what stays
    on the flow's own. ``spread``: over the hosts, not packed. ``host``: the address of the one
    chosen by ``Cluster.place``; "" where there is one only.
    """

    gpus: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int = 0
    spread: bool = False
    host: str = ""


class Pending(Protocol):
    """The answer to a call that has been started."""

    def result(self, timeout_s: float, /) -> Any:
        """Wait at most ``timeout_s`` s. Raises WorkerTimeout, WorkerDied or the call's error."""
        ...


class Worker(Protocol):
    """A handle on an object that lives in the cluster; calls are served in the order they start."""

    name: str

    def start(self, method: str, *args: Any, **kwargs: Any) -> Pending:
        """Start ``method`` on the object and return at once."""
        ...

    def stop(self) -> None:
        """End the worker; calls under way are lost."""
        ...


class Cluster(Protocol):
    """Builds workers and ends them all on ``close``."""

    def spawn(self, target: str, *args: Any, name: str, placement: Placement) -> Worker:
        """Return a worker that has started to build an object of ``target``
        ("package.module:Class") with ``args``. What the constructor raises, the worker's calls do.

        The class is named, not passed, so that heavy imports happen in the worker only.
        """
        ...

    def num_gpus(self) -> float:
        """Return how many GPUs the cluster has."""
        ...

    def place(self, placement: Placement, count: int) -> list[Placement]:
        """Return ``placement`` for each of ``count`` workers of one pool, with its host.

        Raises UserError with what is missing when the cluster cannot hold them.
        """
        ...

    def rendezvous(self, first: Placement) -> str:
        """Return a new place where the ranks of one learner meet, the ``first`` of which is placed
        so, as ``init_method`` of ``torch.distributed``: a file where they share a machine, since
        the TCP store of torch listens on every address without authentication."""
        ...

    def close(self) -> None:
        """End every worker."""
        ...


def new_rendezvous_file() -> str:
    """Return the URL of an empty file that only this user may open. The last rank removes it."""
    handle, path = tempfile.mkstemp(prefix="rlp-ranks-")
    os.close(handle)
    return Path(path).as_uri()


def is_lost(error: BaseException) -> bool:
    """Return whether ``error`` is that of a worker in whose place another can do the same: not one
    that ran out of memory, which would run out of it again, or that is slow."""
    return isinstance(error, WorkerDied | WorkerHung) and not ran_out(error)


def as_completed(
    pendings: Sequence[Pending],
    timeout_s: float,
    *,
    names: Sequence[str],
    method: str,
    again: Callable[[int, WorkerError], Pending] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield (index, result) as results come; the first failure ends the wait for the others.

    A rank that failed leaves its peers in a collective: waiting for them first would replace its
    error by their timeout. A rank that died fails its peers' collective, and its death, which may
    be known a little later, is then the error. ``again`` starts the call of a worker that was lost
    (``is_lost``) in another, with its whole time. Raises WorkerTimeout with the name of one that
    has not finished when ``timeout_s`` seconds, in total, have passed.
    """
    deadline = monotonic() + timeout_s
    waiting = dict(enumerate(pendings))
    while waiting:
        for index in list(waiting):
            left = deadline - monotonic()
            try:
                result = waiting[index].result(min(POLL_S, max(0.0, left)))
            except WorkerTimeout as error:
                if left <= 0:
                    raise WorkerTimeout(
                        f"{names[index]} did not finish {method} within {timeout_s:.0f} s; raise"
                        " hardware.timeouts or look at its log"
                    ) from error
                continue
            except WorkerError as error:
                if again is None or not is_lost(error):
                    raise
                waiting[index] = again(index, error)
                deadline = monotonic() + timeout_s
                continue
            except UserError:
                raise
            except Exception as error:
                del waiting[index]
                _raise_death(waiting.values(), error)
                raise
            del waiting[index]
            yield index, result


def _raise_death(pendings: Iterable[Pending], error: Exception) -> None:
    """Raise WorkerDied for one of ``pendings`` whose worker died, which explains ``error``."""
    deadline = monotonic() + DEATH_S
    for pending in pendings:
        try:
            pending.result(max(0.0, deadline - monotonic()))
        except WorkerDied as death:
            raise death from error
        except Exception:  # noqa: BLE001 - of another call that failed in consequence
            continue


@dataclass(slots=True)
class Polled:
    """A worker that is called again and again, and looked at in between: a call at a time.

    ``what`` names its kind in an error; ``timeout_s`` bounds a call, in seconds.
    """

    worker: Worker
    what: str
    timeout_s: float
    _call: Pending | None = None
    _method: str = ""
    _deadline_s: float = 0.0

    @property
    def is_busy(self) -> bool:
        """Return whether a call is under way."""
        return self._call is not None

    def start(self, method: str, *arguments: Any) -> None:
        """Start ``method``; no call is under way."""
        assert self._call is None, "a call at a time"
        self._method, self._deadline_s = method, monotonic() + self.timeout_s
        self._call = self.worker.start(method, *arguments)

    def result(self, wait_s: float) -> Any:
        """Return the result of the call, or None while it is under way after ``wait_s`` seconds.

        Raises what the call raised, and WorkerTimeout with the worker's name once its time is over.
        """
        assert self._call is not None, "asked of busy workers only"
        try:
            result = self._call.result(wait_s)
        except WorkerTimeout as error:
            if monotonic() < self._deadline_s:
                return None
            raise WorkerTimeout(
                f"{self.what} '{self.worker.name}' did not finish {self._method} within"
                f" {self.timeout_s:.0f} s; raise hardware.timeouts or look at its log"
            ) from error
        self._call = None
        return result

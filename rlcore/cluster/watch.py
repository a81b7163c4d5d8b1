"""Whether a worker's call makes progress, by the signs that it reports (``progress``), and an
end to processes that answer no more."""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from rlcore.cluster.progress import Sign
from rlcore.cluster.types import WorkerError, WorkerHung

END_S = 10.0  # until a process that was killed is gone
POLL_S = 0.05


def is_stopped(pid: int) -> bool:
    """Return whether process ``pid`` is stopped, by a signal or a debugger."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.NoSuchProcess:
        return False


def is_alive(process: psutil.Process) -> bool:
    """Return whether ``process`` has not ended, also where nobody has asked for its status yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def labelled(variable: str, value: str) -> list[psutil.Process]:
    """Return the processes of this user that were started with ``variable`` = ``value`` in their
    environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(variable) == value:
                found.append(process)
    return found


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill ``processes``, also those that are stopped, and wait until they are gone."""
    left = [process for process in processes if is_alive(process)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + END_S
    while any(is_alive(process) for process in left) and time.monotonic() < deadline:
        time.sleep(POLL_S)


logger = logging.getLogger(__name__)

CONTINUES = "rerun the flow, it continues at the last complete iteration"

# Methods that call ``advance`` regularly. Others (load, save, publish) are bounded by their
# timeouts alone.
STEADY = {"step", "update", "logprobs", "values", "generate", "advance", "probe", "score"}
STOPPED_S = 20.0  # for a process that was stopped, by a debugger or SIGSTOP
USUAL = 5.0  # times the longest silence so far is not yet a stall
LOOK_S = 1.0  # between two checks
_LOOK_AT_MOST_S = 5.0  # the waiting process may itself have been stopped meanwhile


@dataclass
class Watch:
    """Follows one worker over all its calls, and logs its notes under its ``name``. ``stall_s``:
    silence that is never taken for a stall.

    What is normal for this worker is learnt: a call that computes ten minutes per micro-batch is
    silent for as long.
    """

    stall_s: float
    name: str = ""
    sign: Sign | None = None
    silent_s: float = 0.0
    stopped_s: float = 0.0
    longest_s: float = 0.0
    heard: int = 0  # changes of the count

    def begin(self) -> None:
        """A call is waited for from now on."""
        self.silent_s = self.stopped_s = 0.0

    def answered(self, method: str, *, passed_s: float) -> None:
        """The call has ended ``passed_s`` seconds after the last check."""
        if method in STEADY:
            self.heard += 1
            self.longest_s = max(self.longest_s, self.silent_s + passed_s)
        self.begin()  # for a call that was started before this one ended

    def look(self, method: str, sign: Sign | None, *, stopped: bool, passed_s: float) -> str | None:
        """Update with the state ``passed_s`` seconds after the last check; return why to give up,
        if at all.

        ``stopped``: the worker's process is stopped, which is known on its own machine only.
        """
        passed_s = min(passed_s, _LOOK_AT_MOST_S)
        self.stopped_s = self.stopped_s + passed_s if stopped else 0.0
        if sign is not None and (self.sign is None or sign.count != self.sign.count):
            self.heard += 1
            self.longest_s = max(self.longest_s, self.silent_s)
            self.silent_s = 0.0
            if sign.note and (self.sign is None or sign.note != self.sign.note):
                logger.warning(f"{self.name}: {sign.note}")
            self.sign = sign
        else:
            self.silent_s += passed_s
        who = "" if self.sign is None else f" (process {self.sign.pid})"
        if self.stopped_s >= STOPPED_S:
            return f"has been stopped{who} for {self.stopped_s:.0f} s, by SIGSTOP or a debugger"
        # The first call compiles, allocates and loads, and there is no normal duration yet.
        known = self.heard > 1 and method in STEADY
        if known and self.silent_s >= max(self.stall_s, USUAL * self.longest_s):
            return f"hangs{who}: no progress for {self.silent_s:.0f} s"
        return None


@dataclass(eq=False)
class CallWatch:
    """Watches one worker while its calls are waited for.

    ``name``: of the worker. ``sign`` returns its newest sign. ``require`` raises WorkerDied, with
    what it is given for the circumstances, when the cluster itself is gone, or a host of it; None
    for one that is not looked at. ``here``: the worker is a process of this host, which can be
    looked at.
    """

    name: str
    sign: Callable[[], Sign | None]
    require: Callable[[str], None] | None
    stall_s: float
    here: bool = True
    _looked: float = 0.0
    _has_looked: bool = False

    def __post_init__(self) -> None:
        self._watch = Watch(self.stall_s, self.name)

    def begin(self, method: str) -> None:
        """The worker starts a call.

        Raises WorkerDied when the cluster is gone.
        """
        self._require_cluster(method)
        self._watch.begin()
        self._looked = time.monotonic()
        self._has_looked = False

    def answered(self, method: str) -> None:
        """A call has ended."""
        passed_s = time.monotonic() - self._looked
        if self._has_looked:  # a short call is not checked
            self._watch.look(method, self.sign(), stopped=False, passed_s=passed_s)
            passed_s = 0.0
        self._watch.answered(method, passed_s=passed_s)
        self._looked, self._has_looked = time.monotonic(), False

    def look(self, method: str) -> None:
        """Raise WorkerDied or WorkerHung when ``method`` can no longer finish."""
        now = time.monotonic()
        passed_s = now - self._looked
        if passed_s < LOOK_S:
            return
        self._looked, self._has_looked = now, True
        self._require_cluster(method)
        sign = self.sign()
        stopped = self.here and sign is not None and is_stopped(sign.pid)
        reason = self._watch.look(method, sign, stopped=stopped, passed_s=passed_s)
        if reason is not None:
            raise logged(WorkerHung, f"worker '{self.name}' {reason}, in {method}")

    def _require_cluster(self, method: str) -> None:
        if self.require is not None:
            self.require(f"worker '{self.name}' was in {method}")


def logged(kind: type[WorkerError], reason: str) -> WorkerError:
    """Return the error that is about to be raised, logged: it can take many seconds until the run
    has ended, or continues."""
    logger.error(reason)
    return kind(f"{reason}; {CONTINUES}")

"""A process that runs code of the user, as its parent holds it: its environment variables, a
socket, a life line, its end, and the calls that are under way in it."""

import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from typing import Any, Generic, TypeVar

from schemas.errors import UserError

# What such a process gets; other variables may hold keys and tokens.
_PASSED = {
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    "CUDA_VISIBLE_DEVICES",  # empty, else a function would see the GPUs of learner and engines
}


def environment_of(named: Sequence[str], key: str = "reward.env") -> dict[str, str]:
    """Return the part of this process's environment that a process of the user's code gets.

    ``named``: the variables of the recipe's list ``key``. Raises UserError for one that is not set.
    """
    check_environment(named, key)
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name in named or name.startswith("LC_")
    }


def check_environment(named: Sequence[str], key: str = "reward.env") -> None:
    """Raise UserError for a variable of the recipe's list ``key`` that is not set here."""
    for index, name in enumerate(named):
        if name not in os.environ:
            raise UserError(
                f"{key}[{index}] = {name!r} is not set where the reward functions run;"
                " export it before `make up`, or leave it out"
            )


SEND_S = 60.0
_START_S = 60.0
_START_ATTEMPTS = 3
_EXIT_S = 1.0
_KILL_S = 5.0


class ChildEnded(Exception):
    """The child process closed its end of the socket."""


@dataclass
class Child:
    """A child seen from its parent."""

    process: subprocess.Popen[bytes]  # it watches the one that runs the user's code
    link: socket.socket
    life: int  # write end of a pipe: the child ends when it closes
    unread: bytearray = field(default_factory=bytearray)

    @classmethod
    def spawn(cls, environment: Mapping[str, str], module: str) -> "Child":
        """Start ``module`` in its own session, so that it does not get the terminal's signals."""
        ours, theirs = socket.socketpair()
        watched, life = os.pipe()
        # multiprocessing's spawn would import the parent's __main__, an actor's or a flow's.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        with theirs:
            descriptors = [theirs.fileno(), watched]
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                env={**environment, "PYTHONPATH": path},
                start_new_session=True,
            )
        os.close(watched)
        return cls(process, ours, life)

    @classmethod
    def started(
        cls,
        setup: Mapping[str, Any],
        environment: Mapping[str, str],
        module: str,
        *,
        what: str,
        limit_s: float = _START_S,
    ) -> tuple["Child", Any]:
        """Return a child that has taken ``setup``, and its answer; ``what`` names it in errors.

        One that is killed while it starts (memory pressure) is started again. Raises UserError
        with what it refuses, or when it takes longer than ``limit_s``; RuntimeError when it does
        not stay alive.
        """
        ending = ""
        for _ in range(_START_ATTEMPTS):
            child = cls.spawn(environment, module)
            try:
                child.send(setup)
                answer = child.receive(limit_s)
            except TimeoutError:
                child.kill()
                raise UserError(
                    f"{what} was not imported within {limit_s:g} s; import heavy packages inside"
                    " its functions, and run nothing at module level"
                ) from None
            except ChildEnded:
                ending = child.ending()
                continue
            if "refused" in answer:
                child.kill()
                raise UserError(answer["refused"].removeprefix("UserError: "))
            return child, answer
        raise RuntimeError(
            f"the process of {what} ended {_START_ATTEMPTS} times while starting ({ending}); its"
            " error output, if any, is in this process's log"
        )

    def send(self, message: Any, within_s: float = SEND_S) -> None:
        """Send one message. Raises ChildEnded when the child has closed its end, or does not take
        all of it ``within_s`` seconds."""
        self.link.settimeout(max(within_s, 1e-6))
        try:
            self.link.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            raise ChildEnded from None

    def receive(self, timeout_s: float) -> Any:
        """Return the next message. Raises TimeoutError, ChildEnded if the child closed its end."""
        deadline = time.perf_counter() + timeout_s
        while (end := self.unread.find(b"\n")) < 0:
            self.link.settimeout(max(deadline - time.perf_counter(), 1e-6))
            try:
                data = self.link.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            if not data:
                raise ChildEnded
            self.unread += data
        line = bytes(self.unread[:end])
        del self.unread[: end + 1]
        return json.loads(line)

    def kill(self) -> None:
        """End the process and everything that it started."""
        if self.process.returncode is not None:
            return
        self.link.close()
        os.close(self.life)
        self._ended_within(_KILL_S)
        # A function may have killed its watcher, which is not reaped yet, so its pid is not reused.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ending(self) -> str:
        """Return how a process that closed its end has ended, and end what it has left running."""
        # The socket closes shortly before the exit status is available.
        self._ended_within(_EXIT_S)
        look = os.WEXITED | os.WNOWAIT | os.WNOHANG
        status = os.waitid(os.P_PID, self.process.pid, look)
        self.kill()
        if status is None:
            return "it closed its connection"
        if status.si_code == os.CLD_EXITED:
            return f"exit code {status.si_status}"
        by_kernel = ", often the out-of-memory killer" if status.si_status == signal.SIGKILL else ""
        return f"signal {signal.Signals(status.si_status).name}{by_kernel}"

    def _ended_within(self, timeout_s: float) -> bool:
        with FileIO(os.pidfd_open(self.process.pid)) as handle:
            return _is_readable(handle, timeout_s)


def _is_readable(file: socket.socket | FileIO, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


@dataclass(slots=True, kw_only=True, eq=False)
class Flight:
    """A call of a child: when it ``began`` (monotonic) and how long it may take, once it has."""

    is_alone: bool = False  # nothing else may be under way with it
    began: float = 0.0
    limit_s: float = 0.0


F = TypeVar("F", bound=Flight)


class ChildCalls(Generic[F]):
    """Calls that wait for a child or are under way in it, which answers each as it ends; not
    thread-safe.

    A call that was alone under way in a child that ended, or did not answer in time and was killed,
    is answered with that. Of several any may be to blame: each is made again, alone.
    """

    def __init__(self, start: Callable[[], Child]) -> None:
        """``start`` starts a child, now and where there is none when one is needed."""
        self.waiting: deque[F] = deque()
        self.under_way: dict[int, F] = {}
        self._start = start
        self._number = 0
        self.child: Child | None = start()

    def end_child(self) -> list[F]:
        """End the child; return the calls that were under way in it."""
        if self.child is not None:
            self.child.kill()
            self.child = None
        flights = list(self.under_way.values())
        self.under_way.clear()
        return flights

    def may_begin(self, most: int) -> bool:
        """Return whether the first waiting call may begin beside those under way (``most``)."""
        if not self.waiting:
            return False
        alone = any(each.is_alone for each in (self.waiting[0], *self.under_way.values()))
        return len(self.under_way) < (1 if alone else most)

    def ready(self) -> Child:
        """Return the child, started where there is none or it ended between calls.

        Raises RuntimeError when none stays alive.
        """
        if self.child is not None and not self.under_way and _is_readable(self.child.link, 0.0):
            self.end_child()  # it has nothing to answer, so it has closed its end
        if self.child is None:
            self.child = self._start()
        return self.child

    def begin(self, flight: F, message: Mapping[str, Any], limit_s: float) -> None:
        """Hand a call to the child, which is ready."""
        assert self.child is not None, "it is ready"
        self._number += 1
        flight.began, flight.limit_s = time.monotonic(), limit_s
        self.under_way[self._number] = flight
        with suppress(ChildEnded):  # found when its answer is read
            self.child.send({"number": self._number, **message}, self._due() - flight.began)

    def _due(self) -> float:
        """Return when the first of the calls under way must have ended (monotonic)."""
        return min(flight.began + flight.limit_s for flight in self.under_way.values())

    def next(self, until: float = math.inf) -> tuple[F, dict[str, Any]] | None:
        """Return a call under way that ended, and what the child said: its answer, or
        {"late": True}, or {"ended": how}; None where none did ``until`` then (monotonic), or
        those that did wait again."""
        child, due = self.child, self._due()
        assert child is not None, "calls are under way in it"
        try:
            said = child.receive(max(0.0, min(due, until) - time.monotonic()))
        except TimeoutError:
            if until < due and time.monotonic() < due:
                return None
            said = {"late": True}
        except ChildEnded:
            said = {"ended": child.ending()}
        else:
            if (number := said.pop("number", None)) not in self.under_way:
                raise RuntimeError(f"a child process answered call {number}, not asked for")
            return self.under_way.pop(number), said
        flights = self.end_child()
        if len(flights) == 1:
            return flights[0], said
        self.again_alone(flights)
        return None

    def again_alone(self, flights: Sequence[F]) -> None:
        """Let ``flights`` wait again, in front and in order: they are older than all that waits."""
        for flight in flights:
            flight.is_alone = True
        self.waiting.extendleft(reversed(flights))

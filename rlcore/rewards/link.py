"""The process of one reward function, as its parent holds it: its environment variables, a
socket, a life line, its end."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

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
    """Raise UserError for a variable of the recipe's list ``key`` that this process's environment
    lacks."""
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
    """A reward child seen from its parent."""

    process: subprocess.Popen[bytes]  # it watches the one that runs the function
    link: socket.socket
    life: int  # write end of a pipe: the child ends when it closes
    rows_scored: int = 0
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

    def send(self, message: Any) -> None:
        """Send one message. Raises ChildEnded when the child has closed its end."""
        self.link.settimeout(SEND_S)
        try:
            self.link.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            raise ChildEnded from None

    def receive(self, timeout_s: float) -> Any:
        """Return the next message. Raises TimeoutError, or ChildEnded when the child has closed
        its end."""
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
        handle = os.pidfd_open(self.process.pid)
        try:
            ending = select.poll()
            ending.register(handle, select.POLLIN)
            return bool(ending.poll(timeout_s * 1000))
        finally:
            os.close(handle)

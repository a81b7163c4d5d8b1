"""A reward function in a child process that can be killed: a bad row loses only its own score."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rlcore.cluster.progress import advance
from rlcore.rewards.registry import Spec, check_environment
from rlcore.rewards.types import Reward, RewardRow
from schemas.errors import UserError
from schemas.outcomes import Outcome

_START_S = 60.0
LOOK_S = 15.0
RECYCLE_ROWS = 10_000
_START_ATTEMPTS = 3
_EXIT_S = 1.0
_KILL_S = 5.0
# Environment variables that a reward function's process gets; others may hold keys and tokens.
_PASSED = {
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    "CUDA_VISIBLE_DEVICES",  # empty, else a function would see the GPUs of learner and engines
}


class FunctionProcess:
    """Runs one reward function in a child process; not thread-safe.

    A row that exceeds its time limit, kills the process or exhausts its memory is marked, the
    process is restarted, and the rows after it are scored as usual.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        path: str,
        memory_gib: float | None,
        environment: Mapping[str, str],
        recycle_rows: int = RECYCLE_ROWS,
    ) -> None:
        """Start the child process; ``path``: where the recipe names the function.

        Raises UserError when the function cannot be loaded.
        """
        self.name, _, options = spec
        self._setup = {
            "name": self.name,
            "options": dict(options),
            "path": path,
            "memory_bytes": int(memory_gib * 2**30) if memory_gib else None,
        }
        self._environment = environment
        self._recycle_rows = recycle_rows
        self._lost = 0  # consecutive lost rows
        self._child: _Child | None = self._start()

    def score(
        self,
        rows: Sequence[RewardRow],
        timeout_s: float,
        check: Callable[[Sequence[Reward]], None] | None = None,
    ) -> list[Reward]:
        """Return the function's reward for each row, in order; ``timeout_s``: seconds of one row.

        ``check`` gets all results so far whenever a row ended its process; an exception from it
        ends the call. Raises RuntimeError when no child process stays alive.
        """
        rewards: list[Reward] = []
        while len(rewards) < len(rows):
            child = self._ready_child()
            room = self._recycle_rows - child.rows_scored
            rewards += self._score_some(child, rows[len(rewards) :][:room], timeout_s)
            if check is not None:
                check(rewards)
        return rewards

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _ready_child(self) -> "_Child":
        if self._child is not None and self._child.rows_scored >= self._recycle_rows:
            self.close()
        if self._child is None:
            self._child = self._start()
        return self._child

    def _start(self) -> "_Child":
        """Start a child; one that is killed while it starts (memory pressure) is started again."""
        for _ in range(_START_ATTEMPTS):
            child = _Child.spawn(self._environment)
            try:
                child.send(self._setup)
                answer = child.receive(_START_S)
            except TimeoutError:
                child.kill()
                raise UserError(
                    f"reward functions took over {_START_S:.0f} s to import; "
                    "import heavy packages inside the function"
                ) from None
            except _ChildEnded:
                child.kill()
                continue
            if "refused" in answer:
                child.kill()
                raise UserError(answer["refused"].removeprefix("UserError: "))
            return child
        raise RuntimeError(
            f"the reward process ended {_START_ATTEMPTS} times while starting; "
            "its error output, if any, is in this process's log"
        )

    def _score_some(
        self, child: "_Child", rows: Sequence[RewardRow], timeout_s: float
    ) -> list[Reward]:
        """Score rows until all are done or one ends the child; that one is the last returned."""
        rewards: list[Reward] = []
        try:
            child.send({"rows": [_fields(row) for row in rows]})
        except _ChildEnded:
            # It died between two batches, so no row caused it.
            self.close()
            return rewards
        for index, row in enumerate(rows):
            start = time.perf_counter()
            try:
                answered, *values = child.receive(timeout_s)
            except TimeoutError:
                self.close()
                outcome = Outcome.TIMEOUT
                detail = f"no score within {timeout_s:g} s; its process was killed"
            except _ChildEnded:
                self._child = None
                outcome, detail = (
                    Outcome.ERROR,
                    f"the reward process died in this row ({child.ending()})",
                )
            else:
                if answered != index:
                    raise RuntimeError(f"the reward process answered row {answered}, not {index}")
                rewards.append(_reward(row, values))
                child.rows_scored += 1
                self._lost = 0
                advance()
                continue
            seconds = time.perf_counter() - start
            lost = Reward(row.trajectory_id, outcome, None, detail=detail, seconds=seconds)
            self._lost += 1
            advance(self._noted(detail))
            return [*rewards, lost]
        return rewards

    def _noted(self, detail: str) -> str:
        """Return a note about the row just lost; of many consecutive ones only some get a note."""
        match self._lost:
            case 1:
                return f"{self.name} lost a row: {detail}"
            case 3:
                return f"{self.name} lost 3 rows in a row: {detail}"
        return ""


class _ChildEnded(Exception):
    """The child process closed its end of the socket."""


@dataclass
class _Child:
    process: subprocess.Popen[bytes]  # it watches the one that runs the function
    link: socket.socket
    life: int  # write end of a pipe: the child ends when it closes
    rows_scored: int = 0
    unread: bytearray = field(default_factory=bytearray)

    @classmethod
    def spawn(cls, environment: Mapping[str, str]) -> "_Child":
        """Start the process in its own session, so that it does not get the terminal's signals."""
        ours, theirs = socket.socketpair()
        watched, life = os.pipe()
        # multiprocessing's spawn would import the parent's __main__, an actor's or a flow's.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        with theirs:
            descriptors = [theirs.fileno(), watched]
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rlcore.rewards.child", *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                env={**environment, "PYTHONPATH": path},
                start_new_session=True,
            )
        os.close(watched)
        return cls(process, ours, life)

    def send(self, message: Any) -> None:
        """Send one message. Raises _ChildEnded when the child has closed its end."""
        self.link.settimeout(_START_S)
        try:
            self.link.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            raise _ChildEnded from None

    def receive(self, timeout_s: float) -> Any:
        """Return the next message. Raises TimeoutError, or _ChildEnded when the child has closed
        its end."""
        deadline = time.perf_counter() + timeout_s
        while (end := self.unread.find(b"\n")) < 0:
            self.link.settimeout(max(deadline - time.perf_counter(), 1e-6))
            try:
                data = self.link.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            if not data:
                raise _ChildEnded
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


def look_at_functions(
    functions: Sequence[Mapping[str, Any]], *, environment: Mapping[str, str]
) -> None:
    """Load functions of the user in one child process, and call none of them.

    Each has ``name``, ``options``, ``path`` (where the recipe names it), ``loader``
    ("package.module:function", called with these three) and ``memory_bytes`` (the address space it
    will get, or None), and ``LOOK_S`` seconds. Raises UserError with what the loader says, or
    when the import raises, ends its process or exceeds the limit.
    """
    child = _Child.spawn(environment)
    try:
        child.send({"functions": list(functions)})
        for function in functions:
            if refused := _answer_on(function, child):
                raise UserError(refused)
    finally:
        child.kill()


def _answer_on(function: Mapping[str, Any], child: _Child) -> str:
    where = f"{function['path']} = {function['name']!r}"
    try:
        return child.receive(LOOK_S)["refused"]
    except TimeoutError:
        return (
            f"{where} was not imported within {LOOK_S:g} s; import heavy packages inside the"
            " function, and run nothing at module level"
        )
    except _ChildEnded:
        return f"{where}: the process that imported it ended ({child.ending()}); import less"


def environment_of(named: Sequence[str]) -> dict[str, str]:
    """Return the part of this process's environment that a reward function gets.

    Raises UserError for a variable of ``reward.env`` that is not set.
    """
    check_environment(named)
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name in named or name.startswith("LC_")
    }


def _fields(row: RewardRow) -> list[Any]:
    return [
        row.trajectory_id,
        row.data_source,
        row.response,
        row.ground_truth,
        dict(row.extra_info),
        row.finish_reason,
        row.num_tokens,
        row.prompt,
    ]


def _reward(row: RewardRow, values: list[Any]) -> Reward:
    outcome, score, correct, parts, detail, seconds, answer = values
    return Reward(
        row.trajectory_id,
        outcome,
        score,
        correct=correct,
        parts=parts,
        detail=detail,
        seconds=seconds,
        answer=answer,
    )

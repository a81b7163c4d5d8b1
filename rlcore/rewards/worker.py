"""Scores rows in a child process that can be killed: one bad row costs its own score only."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlcore.rewards.registry import check_environment
from rlcore.rewards.types import Failure, Reward, RewardRow
from schemas.errors import UserError
from schemas.rl import RewardSection

_START_S = 60.0
_RECYCLE_ROWS = 10_000
_START_ATTEMPTS = 3
_EXIT_S = 1.0
# What a reward function's process gets of the environment; the rest may hold keys and tokens.
_PASSED = {
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    "CUDA_VISIBLE_DEVICES",  # without it a function would see the GPUs of learner and engines
}


class RewardWorker:
    """Runs the reward functions of a recipe in one child process; not for several threads at once.

    A row that outlasts its limit, kills the process or exhausts its memory is marked, the process
    is started anew, and the rows after it are scored as if nothing had happened.
    """

    def __init__(self, section: RewardSection, recycle_rows: int = _RECYCLE_ROWS) -> None:
        """Start the child process; ``recycle_rows``: rows after which it is replaced (leaks).

        Raises UserError when a reward function cannot be had (name, module, signature, options), or
        a variable of ``section.env`` is not set.
        """
        self._setup = {
            "functions": [[f.name, f.weight, f.options] for f in section.functions],
            "memory_bytes": int(section.memory_gib * 2**30) if section.memory_gib else None,
        }
        self._environment = _environment(section.env)
        self._recycle_rows = recycle_rows
        self._child: _Child | None = self._start()

    def score(self, rows: Sequence[RewardRow], timeout_s: float) -> list[Reward]:
        """Return one reward per row, in order; ``timeout_s``: wall clock of one row, in seconds.

        Raises UserError for a limit that is none, RuntimeError when no child process stays alive.
        """
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise UserError(f"reward timeout_s = {timeout_s} must be a positive number of seconds")
        rewards: list[Reward] = []
        while len(rewards) < len(rows):
            child = self._ready_child()
            room = self._recycle_rows - child.rows_scored
            rewards += self._score_some(child, rows[len(rewards) :][:room], timeout_s)
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
        """Start a child; one that is killed while it starts (memory pressure) is tried again."""
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
            "its error output, if any, stands in this process's log"
        )

    def _score_some(
        self, child: "_Child", rows: Sequence[RewardRow], timeout_s: float
    ) -> list[Reward]:
        """Score rows until all are, or until one ends the child; that one is the last returned."""
        rewards: list[Reward] = []
        try:
            child.send({"timeout_s": timeout_s, "rows": [_fields(row) for row in rows]})
        except _ChildEnded:
            # It died between two batches: no row is to blame.
            self.close()
            return rewards
        for index, row in enumerate(rows):
            reward, ended = self._score_row(child, index, row, timeout_s)
            rewards.append(reward)
            if ended:
                return rewards
            child.rows_scored += 1
        return rewards

    def _score_row(
        self, child: "_Child", index: int, row: RewardRow, timeout_s: float
    ) -> tuple[Reward, bool]:
        """Return the reward of one row under way, and whether the row ended the child.

        A row that has a score keeps it, whatever the functions of weight 0 do after it.
        """
        start = time.perf_counter()
        reward: Reward | None = None
        pending: list[str] = []
        while reward is None or pending:
            try:
                left = timeout_s - (time.perf_counter() - start)
                answered, pending, *values = child.receive(left)
            except TimeoutError:
                self.close()
                failure = Failure(
                    "timeout", f"no score within {timeout_s:g} s; its process was killed"
                )
            except _ChildEnded:
                self._child = None
                failure = Failure(
                    "error", f"the reward process died in this row ({child.ending()})"
                )
            else:
                if answered != index:
                    raise RuntimeError(f"the reward process answered row {answered}, not {index}")
                reward = _reward(row, values)
                continue
            seconds = time.perf_counter() - start
            if reward is None:
                return Reward(
                    row.trajectory_id,
                    failure.outcome,
                    None,
                    detail=failure.detail,
                    seconds=seconds,
                ), True
            ending, *unasked = pending
            not_asked = Failure(failure.outcome, f"not asked: {ending} ended the process")
            failures = {ending: failure, **dict.fromkeys(unasked, not_asked)}
            return replace(reward, failures={**reward.failures, **failures}, seconds=seconds), True
        return reward, False


class _ChildEnded(Exception):
    """The child process closed its end of the socket."""


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    link: socket.socket
    rows_scored: int = 0
    unread: bytearray = field(default_factory=bytearray)

    @classmethod
    def spawn(cls, environment: Mapping[str, str]) -> "_Child":
        """Start the process in its own session, so that what it starts is killed with it."""
        ours, theirs = socket.socketpair()
        # multiprocessing's spawn would import the parent's __main__, an actor's or a flow's.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rlcore.rewards.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**environment, "PYTHONPATH": path},
                start_new_session=True,
            )
        return cls(process, ours)

    def send(self, message: Any) -> None:
        """Send one message. Raises _ChildEnded when nobody reads."""
        self.link.settimeout(_START_S)
        try:
            self.link.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            raise _ChildEnded from None

    def receive(self, timeout_s: float) -> Any:
        """Return the next message. Raises TimeoutError, or _ChildEnded when there will be none."""
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
        """End the process and all that it started."""
        self.link.close()
        # The leader is not reaped yet, so its id cannot have passed to another process group.
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ending(self) -> str:
        """Say how a process that closed its end has ended, and clear up what it left."""
        # The socket closes a moment before the exit status is there.
        deadline = time.perf_counter() + _EXIT_S
        look = os.WEXITED | os.WNOWAIT | os.WNOHANG
        while (status := os.waitid(os.P_PID, self.process.pid, look)) is None:
            if time.perf_counter() > deadline:
                break
            time.sleep(0.001)
        self.kill()
        if status is None:
            return "it closed its connection"
        if status.si_code == os.CLD_EXITED:
            return f"exit code {status.si_status}"
        by_kernel = ", often the out-of-memory killer" if status.si_status == signal.SIGKILL else ""
        return f"signal {signal.Signals(status.si_status).name}{by_kernel}"


def _environment(named: Sequence[str]) -> dict[str, str]:
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
    outcome, score, correct, parts, detail, seconds, answer, counts, failures = values
    return Reward(
        row.trajectory_id,
        outcome,
        score,
        correct=correct,
        parts=parts,
        detail=detail,
        seconds=seconds,
        answer=answer,
        counts=counts,
        failures={name: Failure(*failure) for name, failure in failures.items()},
    )

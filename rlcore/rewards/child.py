"""The process of one reward function: reads batches of rows from a socket, answers row by row.

Started by ``rlcore.rewards.process`` as ``python -m rlcore.rewards.child <socket> <pipe>``. It
forks at once: the second process runs the function, the first only watches. When the second ends,
or the pipe closes because the parent no longer waits or was killed, the first ends everything that
the second has started. Messages are JSON, so neither side can execute what the other sends. The
function's output is dropped.

Asked to look at a function, the second process loads it and does not call it.
"""

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from rlcore.rewards.calls import AsyncFunction, serve
from rlcore.rewards.registry import build
from rlcore.rewards.types import Reward, RewardRow
from rlcore.store.user_modules import import_failure
from schemas.errors import UserError

_DETAIL_CHARACTERS = 500
_ANSWER_CHARACTERS = 200
_ROOM_BYTES = 64 * 2**20
_MEMORY_KEY = "reward.memory_gib"
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


def main(
    link_descriptor: int, life_descriptor: int, serve: Callable[[socket.socket], None]
) -> None:
    """Let ``serve`` answer the parent on the socket ``link_descriptor``, until ``life_descriptor``
    closes."""
    # Orphaned descendants become children of this process, so that it can find and end them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    function = os.fork()
    if function:
        os.close(link_descriptor)
        _watch(function, life_descriptor)
    os.close(life_descriptor)
    serve(socket.socket(fileno=link_descriptor))


def _watch(function: int, life: int) -> None:
    """Wait for the end of process ``function`` or of the pipe ``life``, then end in the same
    way."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ended = os.pidfd_open(function)
    select.select([ended, life], [], [])
    os.kill(function, signal.SIGKILL)  # not reaped yet, so the pid is still its own
    _, status = os.waitpid(function, 0)
    _end_descendants()
    if os.WIFSIGNALED(status):
        with suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _end_descendants() -> None:
    import psutil  # imported here only, since it would slow down every start

    while left := psutil.Process().children(recursive=True):
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=1)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def silence() -> None:
    """Drop what this process writes, and leave no core file of it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(link: socket.socket) -> None:
    lines = link.makefile("rb")
    silence()
    setup = json.loads(lines.readline())
    if "look_at" in setup:
        refused = _refusal(setup["look_at"])
        send(link, {"refused": refused} if refused else {"ready": True})
        return
    try:
        function = build((setup["name"], 1.0, setup["options"]), setup["path"], setup["batch"])
    except Exception as error:  # noqa: BLE001 - the user's module may fail in any way; reported
        send(link, {"refused": f"{type(error).__name__}: {error}"[:_DETAIL_CHARACTERS]})
        return
    if refused := limit_memory(setup["memory_bytes"], _MEMORY_KEY):
        send(link, {"refused": refused})
        return
    send(link, {"ready": True, "async": isinstance(function, AsyncFunction)})
    if isinstance(function, AsyncFunction):
        serve(link, function, _answer)
        return
    for line in lines:
        call = json.loads(line)["call"]
        results = function.results([RewardRow(*fields) for _, *fields in call])
        for (index, *_), (reward, seconds) in zip(call, results, strict=True):
            link.sendall(_answer(index, reward, seconds))


def _refusal(named: dict[str, Any]) -> str:
    """Return why a function cannot be used, "" when it can."""
    name, path = named["name"], named["path"]
    try:
        # By a computed name: what looks at functions is no part of the code that scores.
        module, _, loader = named["loader"].partition(":")
        getattr(import_module(module), loader)(name, named["options"], path)
        return limit_memory(named["memory_bytes"], _MEMORY_KEY)
    except UserError as error:
        return str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module may fail in any way
        return import_failure(error, name, path)


def limit_memory(memory_bytes: int | None, key: str) -> str:
    """Limit this process's address space; return why that leaves no room, "" when it does.

    ``key``: what sets the limit in the recipe.
    """
    if not memory_bytes:
        return ""
    taken = (
        int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        * resource.getpagesize()
    )
    if memory_bytes < taken + _ROOM_BYTES:
        return (
            f"{key} = {memory_bytes / 2**30:.3g} is too little: the process that it limits takes"
            f" {taken / 2**30:.3g} GiB of addresses before its first row; give it at least "
            f"{(taken + _ROOM_BYTES) / 2**30:.3g}"
        )
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    return ""


def _answer(index: int, reward: Reward, seconds: float) -> bytes:
    """Return the message with the reward of the row ``index``."""
    values = [
        index,
        reward.outcome,
        reward.score,
        reward.correct,
        dict(reward.parts),
        reward.detail[:_DETAIL_CHARACTERS],
        seconds,
        None if reward.answer is None else reward.answer[:_ANSWER_CHARACTERS],
    ]
    return json.dumps(values).encode() + b"\n"


def send(link: socket.socket, message: Any) -> None:
    """Send one message to the parent."""
    link.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), _serve)

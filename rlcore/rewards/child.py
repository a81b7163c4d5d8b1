"""The process of one reward function: reads calls from a socket, each of one row or of a prompt's
rows, and answers each.

Started by ``rlcore.rewards.process`` as ``python -m rlcore.rewards.child <socket> <pipe>``. It
forks at once: the second process runs the function, the first only watches. When the second ends,
or the pipe closes because the parent no longer waits or was killed, the first ends everything that
the second has started. Messages are JSON, so neither side can execute what the other sends. The
function's output is dropped.
"""

import asyncio
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from rlcore.rewards.calls import AsyncFunction, answer_as_they_end, as_line
from rlcore.rewards.types import FUNCTION_FIELDS, Reward, RewardRow
from rlcore.store.user_modules import import_failure
from schemas.errors import UserError

_DETAIL_CHARACTERS = 500
_ANSWER_CHARACTERS = 200
_ROOM_BYTES = 64 * 2**20
_MEMORY_KEY = "reward.memory_gib"
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


def main(serve: Callable[[socket.socket, dict[str, Any]], None]) -> None:
    """Let ``serve`` answer the parent on a socket, as its setup says, until a pipe closes; both are
    descriptors in the command line. What the process writes is dropped, and it leaves no core."""
    link_descriptor, life_descriptor = map(int, sys.argv[1:3])
    # Orphaned descendants become children of this process, so that it can find and end them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    function = os.fork()
    if function:
        os.close(link_descriptor)
        _watch(function, life_descriptor)
    os.close(life_descriptor)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    link = socket.socket(fileno=link_descriptor)
    serve(link, json.loads(link.makefile("rb").readline()))  # the parent waits for an answer to it


def _watch(function: int, life: int) -> None:
    """Wait for the end of process ``function`` or of the pipe ``life``, then end the same way."""
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
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def _serve(link: socket.socket, setup: dict[str, Any]) -> None:
    name, path, refused = setup["name"], setup["path"], ""
    try:
        # By a computed name: what only looks at functions is no part of the code that scores.
        function = resolve_name(setup["loader"])(name, setup["options"], path, setup["batch"])
    except UserError as error:
        refused = str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module may fail in any way
        refused = import_failure(error, name, path)
    if refused := refused or limit_memory(setup["memory_bytes"], _MEMORY_KEY):
        send(link, {"refused": refused})
        return
    send(link, {"ready": True, "async": isinstance(function, AsyncFunction)})
    if isinstance(function, AsyncFunction):
        asyncio.run(answer_as_they_end(link, partial(_awaited, function)))
        return
    for line in link.makefile("rb"):
        call = json.loads(line)
        send(link, {"number": call["number"], **_said(function.results(_rows_in(call)))})


async def _awaited(function: AsyncFunction, call: Mapping[str, Any]) -> dict[str, Any]:
    (row,) = _rows_in(call)
    return _said([await function.result(row, call["timeout_s"])])


def _rows_in(call: Mapping[str, Any]) -> list[RewardRow]:
    return [RewardRow(*fields) for fields in call["rows"]]


def limit_memory(memory_bytes: int | None, key: str) -> str:
    """Limit this process's address space; return why that leaves no room, "" when it does.

    ``key``: what sets the limit in the recipe.
    """
    if not memory_bytes:
        return ""
    pages, *_ = Path("/proc/self/statm").read_text(encoding="utf-8").split()
    taken = int(pages) * resource.getpagesize()
    if memory_bytes < taken + _ROOM_BYTES:
        return (
            f"{key} = {memory_bytes / 2**30:.3g} is too little: the process that it limits takes"
            f" {taken / 2**30:.3g} GiB of addresses before its first row; give it at least "
            f"{(taken + _ROOM_BYTES) / 2**30:.3g}"
        )
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    return ""


def _said(rewards: Iterable[Reward]) -> dict[str, Any]:
    """Return the answer with the rewards of a call's rows."""
    return {
        "rewards": [
            {
                **{name: getattr(reward, name) for name in FUNCTION_FIELDS},
                "detail": reward.detail[:_DETAIL_CHARACTERS],
                "answer": reward.answer and reward.answer[:_ANSWER_CHARACTERS],
            }
            for reward in rewards
        ]
    }


def send(link: socket.socket, message: Any) -> None:
    """Send one message to the parent."""
    link.sendall(as_line(message))


if __name__ == "__main__":
    main(_serve)

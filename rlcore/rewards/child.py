"""The scoring process: reads batches of rows from a socket, answers each row as it goes.

One line per step of a row (``rlcore.rewards.registry.build_steps``): what functions of weight 0 do
afterwards cannot cost the row the score that it has.

Started by ``rlcore.rewards.worker`` as ``python -m rlcore.rewards.child <fd>``. Lines are JSON, so
neither side runs what the other sends. What reward functions print is dropped.
"""

import json
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from rlcore.rewards.registry import build_steps, failure_text
from rlcore.rewards.types import Reward, RewardRow

_DETAIL_CHARACTERS = 500
_ANSWER_CHARACTERS = 200
_GRACE_S = 5.0
_ROOM_BYTES = 64 * 2**20


def main(descriptor: int) -> None:
    """Serve the parent on the socket ``descriptor`` until it closes its end."""
    link = socket.socket(fileno=descriptor)
    lines = link.makefile("rb")
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    setup = json.loads(lines.readline())
    try:
        steps = build_steps([tuple(spec) for spec in setup["functions"]])
    except Exception as error:  # noqa: BLE001 - the user's module may fail in any way; it is told
        _send(link, {"refused": f"{type(error).__name__}: {error}"[:_DETAIL_CHARACTERS]})
        return
    if setup["memory_bytes"]:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        if setup["memory_bytes"] < taken + _ROOM_BYTES:
            _send(link, {"refused": _too_little(setup["memory_bytes"], taken)})
            return
        resource.setrlimit(resource.RLIMIT_AS, (setup["memory_bytes"],) * 2)
    _send(link, {"ready": True})
    for line in lines:
        batch = json.loads(line)
        for index, fields in enumerate(batch["rows"]):
            # The kernel ends this process should the parent be gone when a row hangs.
            signal.setitimer(signal.ITIMER_REAL, batch["timeout_s"] + _GRACE_S)
            row, start = RewardRow(*fields), time.perf_counter()
            try:
                for reward, pending in steps(row):
                    _send(link, [index, pending, *_fields(reward, time.perf_counter() - start)])
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a failure is this row's outcome
                reward = Reward(row.trajectory_id, "error", None, detail=failure_text(error))
                _send(link, [index, [], *_fields(reward, time.perf_counter() - start)])
        signal.setitimer(signal.ITIMER_REAL, 0)


def _fields(reward: Reward, seconds: float) -> list[Any]:
    return [
        reward.outcome,
        reward.score,
        reward.correct,
        dict(reward.parts),
        reward.detail[:_DETAIL_CHARACTERS],
        seconds,
        None if reward.answer is None else reward.answer[:_ANSWER_CHARACTERS],
        reward.counts,
        {
            name: [failure.outcome, failure.detail[:_DETAIL_CHARACTERS]]
            for name, failure in reward.failures.items()
        },
    ]


def _too_little(limit: int, taken: int) -> str:
    return (
        f"reward.memory_gib = {limit / 2**30:.3g} is too little: the scoring process takes "
        f"{taken / 2**30:.3g} GiB of addresses before its first row; give it at least "
        f"{(taken + _ROOM_BYTES) / 2**30:.3g}"
    )


def _send(link: socket.socket, message: Any) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))

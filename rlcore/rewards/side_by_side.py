"""Serves the rows of a coroutine side by side, in the process of the reward function."""

import asyncio
import json
import socket
from collections.abc import Callable

from rlcore.rewards.calls import AsyncFunction
from rlcore.rewards.types import Reward, RewardRow

_LONGEST_MESSAGE = 2**30


def serve(
    link: socket.socket, function: AsyncFunction, answer: Callable[[int, Reward, float], bytes]
) -> None:
    """Answer the rows that arrive on ``link`` as they end, until the parent closes it.

    The parent decides how many are under way at once.
    """
    asyncio.run(_serve(link, function, answer))


async def _serve(
    link: socket.socket, function: AsyncFunction, answer: Callable[[int, Reward, float], bytes]
) -> None:
    reader, writer = await asyncio.open_connection(sock=link, limit=_LONGEST_MESSAGE)
    running: set[asyncio.Task[None]] = set()

    async def score(index: int, row: RewardRow, timeout_s: float) -> None:
        reward, seconds = await function.result(row, timeout_s)
        writer.write(answer(index, reward, seconds))
        await writer.drain()

    while line := await reader.readline():
        message = json.loads(line)
        for call in message["calls"]:
            for index, *fields in call:
                row = RewardRow(*fields)
                task = asyncio.create_task(score(index, row, message["timeout_s"]))
                running.add(task)  # the loop keeps weak references only
                task.add_done_callback(running.discard)

"""How the child process calls a loaded reward function: row by row, on a prompt's rows at once, or
side by side.

A function's exception is the outcome of its rows.
"""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlcore.rewards.types import Reward, RewardRow
from rlcore.store.user_modules import raised_at
from schemas.errors import UserError
from schemas.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class SyncFunction:
    """A function of one row in a list, or of all rows of one prompt; ``convert`` makes a reward of
    a row's result."""

    call: Callable[[Sequence[RewardRow]], Any]
    convert: Callable[[RewardRow, Any], Reward]

    def results(self, rows: Sequence[RewardRow]) -> Iterator[Reward]:
        """Yield the reward of each row, in order; each takes an equal share of the call's time."""
        start = time.perf_counter()
        try:
            given = self._results(rows)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a failure is the rows' outcome
            given = [error] * len(rows)
        share = (time.perf_counter() - start) / len(rows)
        for row, result in zip(rows, given, strict=True):
            try:
                if isinstance(result, BaseException):
                    raise result
                reward = self.convert(row, result)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a failure is this row's outcome
                reward = failed(row, error)
            yield replace(reward, seconds=share)

    def _results(self, rows: Sequence[RewardRow]) -> list[Any]:
        given = self.call(rows)
        try:
            results = list(given)
        except TypeError:
            raise UserError(
                f"the batch function returned {str(given)[:80]!r}, which is no list of results"
            ) from None
        if isinstance(given, str | dict) or len(results) != len(rows):
            raise UserError(
                f"the batch function returned {len(results)} results for {len(rows)} rows"
            )
        return results


@dataclass(frozen=True, slots=True)
class AsyncFunction:
    """A coroutine of one row."""

    score: Callable[[RewardRow], Coroutine[Any, Any, Reward]]

    async def result(self, row: RewardRow, timeout_s: float) -> Reward:
        """Return the row's reward; one that takes longer than ``timeout_s`` is cancelled."""
        start = time.perf_counter()
        try:
            reward = await asyncio.wait_for(self.score(row), timeout_s)
        except TimeoutError as error:
            if time.perf_counter() - start < timeout_s:  # the function's own
                reward = failed(row, error)
            else:
                why = f"no score within {timeout_s:g} s; it was cancelled"
                reward = Reward.lost(row, why, Outcome.TIMEOUT)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a failure is this row's outcome
            reward = failed(row, error)
        return replace(reward, seconds=time.perf_counter() - start)


Function = SyncFunction | AsyncFunction


def failed(row: RewardRow, error: BaseException) -> Reward:
    """Return the reward of a row whose function raised ``error``."""
    return Reward.lost(row, failure_text(error))


def failure_text(error: BaseException) -> str:
    """Return type and message of ``error`` as a detail, with the user's line it came through."""
    text, kind = str(error), type(error).__name__
    return (f"{kind}: {text}" if text else kind) + raised_at(error)


def as_line(message: Any) -> bytes:
    """Return a message to the parent as a line of JSON. Halves of characters (lone surrogates, as
    of a broken escape) become "?": no table and no tokenizer would take them."""
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


_LONGEST_MESSAGE = 2**30


async def answer_as_they_end(
    link: socket.socket, answer: Callable[[Any], Coroutine[Any, Any, dict[str, Any] | None]]
) -> None:
    """Call ``answer`` side by side with the messages on ``link``, each a line of JSON, and send
    what it returns as it ends, with the message's number, until the other side closes.

    The other side decides how many are under way at once.
    """
    reader, writer = await asyncio.open_connection(sock=link, limit=_LONGEST_MESSAGE)
    running: set[asyncio.Task[None]] = set()

    async def answered(message: Any) -> None:
        if (said := await answer(message)) is not None:
            writer.write(as_line({"number": message["number"], **said}))
            await writer.drain()

    while line := await reader.readline():
        task = asyncio.create_task(answered(json.loads(line)))
        running.add(task)  # the loop keeps weak references only
        task.add_done_callback(running.discard)

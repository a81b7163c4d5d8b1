"""The process that holds environments: answers calls side by side, each as it ends.

Started by ``rlcore.envs.process`` as ``python -m rlcore.envs.child <socket> <pipe>``, watched and
ended as the process of a reward function is (``rlcore.rewards.child``). An episode whose state was
lost with an earlier process comes with what happened in it, which is done again first.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rlcore.envs.registry import Kind
from rlcore.envs.tools import result_of
from rlcore.envs.types import Environment, Start, Step, as_start, as_step
from rlcore.rewards.calls import answer_as_they_end, as_line, failure_text
from rlcore.rewards.child import limit_memory, main, send
from schemas.environment import MCP

if TYPE_CHECKING:
    from rlcore.envs.mcp import McpTools

_DETAIL_CHARACTERS = 500


class NotRepeatable(Exception):
    """An environment answered otherwise when its episode was done again."""


async def _serve(link: socket.socket, setup: dict[str, Any]) -> None:
    async with AsyncExitStack() as held:
        try:
            kind = await held.enter_async_context(_opened(setup["name"], setup["options"]))
        except Exception as error:  # noqa: BLE001 - the user's class may fail in any way; reported
            send(link, {"refused": failure_text(error)[:_DETAIL_CHARACTERS]})
            return
        # A server was started before, and is not limited.
        if refused := limit_memory(setup["memory_bytes"], setup["memory_key"]):
            send(link, {"refused": refused})
            return
        send(link, {"ready": True, "role": kind.role})
        await _answer_all(link, kind, setup)


@asynccontextmanager
async def _opened(name: str, options: dict[str, Any]) -> AsyncIterator["Kind | McpTools"]:
    """Yield the kind of environment ``name``; a server of it runs meanwhile."""
    if name != MCP:
        yield Kind(name, options)
        return
    from rlcore.envs.mcp import connected

    async with connected(**options) as kind:
        yield kind


async def _answer_all(link: socket.socket, kind: "Kind | McpTools", setup: dict[str, Any]) -> None:
    # Plain methods wait in threads; tools mostly wait for something else.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(setup["threads"]))
    episodes: dict[str, Environment] = {}

    async def answer(message: dict[str, Any]) -> dict[str, Any] | None:
        if "ended" not in message:
            return await _answered(message, episodes, kind, setup["timeout_s"])
        for name in message["ended"]:
            episodes.pop(name, None)
        return None

    await answer_as_they_end(link, answer)


async def _answered(
    call: dict[str, Any],
    episodes: dict[str, Environment],
    kind: "Kind | McpTools",
    timeout_s: float,
) -> dict[str, Any]:
    """Return {"said": ...}, {"late": True}, or {"error": ...}; after the last two the episode's
    state is gone."""
    name = call.get("episode", "")
    try:
        if "tools" in call:
            if call["tools"]["build"]:
                kind.build()
            return {"said": kind.tools()}
        if "demonstrations" in call:
            return {"said": [kind.demonstration(seed) for seed in call["demonstrations"]]}
        if "past" in call:
            episodes[name] = await _again(kind, call["past"], timeout_s)
        async with asyncio.timeout(timeout_s):
            return {"said": asdict(await _one(episodes[name], call["do"]))}
    except TimeoutError:
        episodes.pop(name, None)
        return {"late": True}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a failure is this episode's
        episodes.pop(name, None)
        return {"error": failure_text(error)[:_DETAIL_CHARACTERS]}


async def _again(kind: "Kind | McpTools", past: list[Any], timeout_s: float) -> Environment:
    """Return an environment in which ``past`` has happened: a list of (call, answer).

    Raises NotRepeatable when it answers otherwise now.
    """
    episode = kind.build()
    for do, said in past:
        async with asyncio.timeout(timeout_s):
            # Through JSON, as the answer that it is compared with has come.
            now = json.loads(as_line(asdict(await _one(episode, do))))
        if now != said:
            raise NotRepeatable(
                "the environment's process had ended, and the same actions with the same seed are"
                " answered otherwise now; draw everything that is random from the seed of reset()"
            )
    return episode


async def _one(episode: Environment, do: dict[str, Any]) -> Start | Step:
    try:
        if "text" in do:
            return as_step(await result_of(episode.step, do["text"]))
        return as_start(await result_of(episode.reset, do["row"], do["seed"]))
    except TimeoutError as error:  # its own: our limit arrives here as a cancellation
        raise RuntimeError(failure_text(error)) from error


if __name__ == "__main__":
    main(lambda link, setup: asyncio.run(_serve(link, setup)))

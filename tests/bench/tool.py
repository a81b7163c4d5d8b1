"""A tool whose answers take as long as the row says; a module of its own, as the environment's
process imports it."""

import asyncio
from collections.abc import Mapping
from typing import Any

from rlcore.envs.types import Step


class SlowTool:
    """Answers each turn with the same words, after a latency that is slept."""

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        """``row``: ``latencies_s``, seconds of each turn, and the ``observation``."""
        del seed
        self._latencies_s = iter(row["latencies_s"])
        self._answer = Step([{"role": "user", "content": row["observation"]}])

    async def step(self, text: str) -> Step:
        """Sleep, then answer."""
        del text
        await asyncio.sleep(next(self._latencies_s))
        return self._answer

"""Environments of a user, each with one way to behave."""

import ctypes
import os
import random
import signal
import time
from collections.abc import Mapping
from typing import Any

from rlcore.envs.types import Step


class Counter:
    """Counts the turns; what it says depends on all that was said, so that a lost state shows."""

    def __init__(self, turns: int = 3) -> None:
        self._turns, self._heard = turns, []

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        """Begin with the seed."""
        self._heard = [str(seed)]

    def step(self, text: str) -> Step:
        """Do what ``text`` says, then repeat all that was heard."""
        if text.startswith("die once "):
            marker = text.removeprefix("die once ")
            if not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        if text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "raise":
            raise ValueError("no such move")
        if text == "time out":
            raise TimeoutError("the search does not answer")
        if text == "hang":
            time.sleep(60)
        if text == "block":
            ctypes.PyDLL(None).sleep(60)  # without letting any other thread run
        if text == "work":
            time.sleep(0.15)
        self._heard.append("caf\udce9" if text == "half" else text)  # as of a file's name
        done = len(self._heard) > self._turns
        return Step([{"role": "user", "content": " ".join(self._heard)}], reward=0.5, done=done)


class Keyed:
    """Needs a variable that the recipe does not name."""

    def __init__(self) -> None:
        self._key = os.environ["SEARCH_KEY"]

    def step(self, text: str) -> Step:
        """End."""
        return Step(done=True)


class Random:
    """Draws from the machine's noise, which no seed repeats."""

    async def reset(self, row: Mapping[str, Any], seed: int) -> None:
        """Begin."""

    async def step(self, text: str) -> Step:
        """Say a number, or die."""
        if text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        number = random.SystemRandom().random()
        return Step([{"role": "user", "content": str(number)}])


class Shop:
    """Tools as TRL's environment_factory takes them."""

    def reset(self, stock: int = 1, **row: Any) -> str | None:
        """Fill the shelf."""
        self._stock = stock
        return None

    def buy(self, count: int) -> str:
        """Buy things.

        Args:
            count: How many.
        """
        if count > self._stock:
            raise ValueError(f"only {self._stock} are left")
        self._stock -= count
        return f"{self._stock} left"

    async def wait(self, seconds: float) -> str:
        """Wait.

        Args:
            seconds: How long.
        """
        import asyncio

        await asyncio.sleep(seconds)
        return "done"


class NoTools:
    """Neither a step nor a tool."""


class Undocumented:
    """A tool that no policy can be told of."""

    def buy(self, count):
        return count

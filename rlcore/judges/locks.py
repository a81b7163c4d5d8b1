"""Turns of several processes of one machine, which the kernel ends with the process that has one.

Each turn is a lock on one byte of a file: killed workers leave nothing behind.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_LOOK_S = 0.02
_QUESTIONS = 2**20  # bytes from here on stand for questions, those before for requests under way


class Locks:
    """The turns that share the file ``path``. Locks of one process do not exclude each other, so
    only one object per file and process may be in use."""

    def __init__(self, path: Path) -> None:
        """Open the file, making it and its folder where there is none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._taken: set[int] = set()

    def close(self) -> None:
        """End all turns of this process."""
        os.close(self._file)

    @asynccontextmanager
    async def slot(self, count: int) -> AsyncIterator[None]:
        """Wait for one of ``count`` turns that all processes share, and hold it."""
        async with self._turn(range(count)):
            yield

    @asynccontextmanager
    async def question(self, digest: str) -> AsyncIterator[None]:
        """Wait until no other process asks the question of ``digest`` (hex), and keep others from
        asking it."""
        async with self._turn(range(offset := _QUESTIONS + int(digest[:14], 16), offset + 1)):
            yield

    @asynccontextmanager
    async def _turn(self, offsets: range) -> AsyncIterator[None]:
        while (offset := self._take(offsets)) is None:
            await asyncio.sleep(_LOOK_S)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, offset)
            self._taken.discard(offset)

    def _take(self, offsets: range) -> int | None:
        for offset in offsets:
            if offset in self._taken:
                continue
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except (BlockingIOError, PermissionError):  # another process has it
                continue
            self._taken.add(offset)
            return offset
        return None

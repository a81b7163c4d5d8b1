"""Files that are whole and visible are made durable in a thread, in the order they were written.

What a power failure tears meanwhile is found by its digest and made again. That is for records
which a rerun can make again from the newest checkpoint; a checkpoint itself is durable before it is
visible, and all records before it are durable before that.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from rlcore.store.checks import ArtifactError


class Flusher:
    """Flushes files and folders of one store in the background."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._pending: list[Future[None]] = []

    def later(self, uri: str, paths: Sequence[Path]) -> None:
        """Flush ``paths`` of the artifact ``uri``, in order, and return at once. One that was
        removed meanwhile counts as flushed."""
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="flusher")
            self._pending = [each for each in self._pending if not _succeeded(each)]
            self._pending.append(self._thread.submit(_flush_all, uri, paths))

    def settle(self) -> None:
        """Return once all is durable that was handed over before, by any thread. Raises
        ArtifactError, once, where the disk refused it."""
        with self._lock:
            pending = list(self._pending)
        try:
            for each in pending:
                each.result()
        finally:
            with self._lock:
                self._pending = [each for each in self._pending if not each.done()]


def flush(path: Path) -> None:
    """Make the content of a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _succeeded(future: Future[None]) -> bool:
    return future.done() and future.exception() is None


def _flush_all(uri: str, paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            flush(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ArtifactError(
                f"{uri} was written and the disk did not keep it: {error.strerror}. Free space or"
                " replace the disk, then rerun: what it lost is made again."
            ) from error

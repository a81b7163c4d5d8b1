"""Limits on reading files that others wrote: of size, depth, time and memory."""

import ctypes
import json
import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas.errors import UserError

MIB = 1 << 20


def read_bytes(path: Path, *, at_most: int) -> bytes:
    """Return the bytes of a regular file of at most ``at_most`` bytes.

    Raises OSError as ``open`` does, and UserError for anything that is no regular file, as a pipe,
    at which reading waits for ever, and for a larger one.
    """
    # Without O_NONBLOCK opening a pipe waits for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} is no regular file; put a file there, or remove it")
        if status.st_size > at_most:
            raise UserError(
                f"{path} has {status.st_size / MIB:.0f} MiB, and such a file at most"
                f" {at_most / MIB:.0f}; give another, or remove what is not needed"
            )
        return file.read()


def read_text(path: Path, *, at_most: int) -> str:
    """Return the text of a file as ``read_bytes`` does. Raises UserError where it is not UTF-8."""
    raw = read_bytes(path, at_most=at_most)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(f"{path} is not UTF-8 on line {line}; save it as UTF-8") from None


def read_json(raw: bytes | str) -> Any:
    """Return what JSON text holds. Raises ValueError for other text, and where it is nested deeper
    than Python reads."""
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextmanager
def within(limit_s: float, sentence: str) -> Iterator[None]:
    """Raise UserError with ``sentence`` where the body, Python of somebody else's that may have no
    end, takes longer than ``limit_s`` seconds of one thread. Code in C is not interrupted."""

    class Late(BaseException):  # not an Exception, which the body may catch
        pass

    thread, lock, ended = threading.get_ident(), threading.Lock(), False

    def interrupt() -> None:
        with lock:
            if not ended:
                raised = ctypes.py_object(Late)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)

    timer = threading.Timer(limit_s, interrupt)
    timer.daemon = True
    timer.start()
    try:
        try:
            yield
        finally:
            with lock:
                ended = True
            timer.cancel()
    except Late:  # also where it comes when the body has just ended
        raise UserError(sentence) from None


@contextmanager
def within_memory(more_bytes: int, sentence: str) -> Iterator[None]:
    """Raise UserError with ``sentence`` where the body needs more than ``more_bytes`` of address
    space beyond what this process has. The limit binds its other threads, too: for short bodies."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + more_bytes
    known = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(most, *known) if known else most, hard))
    try:
        yield
    except MemoryError:
        raise UserError(sentence) from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

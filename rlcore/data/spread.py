"""Parts of the data prepared one after the other, many of them in processes side by side."""

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.data.messages import decode_answer, encode_part, encode_setup, tokenizer_digest
from rlcore.data.part import PART_ROWS, Part, Prepared, Work, prepare_part
from rlcore.models.tokenizer import tokenizer_file
from rlcore.rewards.link import Child
from schemas.errors import UserError

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

MANY = 16  # parts, 131,072 rows, from which starting processes (seconds each) pays
_CHILD = "rlcore.data.child"
# A child works on one core: libraries that start threads of their own would contend.
_THREADS = {
    "TOKENIZERS_PARALLELISM": "false",
    **dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS"), "1"),
}


def prepare_parts(
    tokenizer: "ChatTokenizer", work: Work, parts: Iterable[Part]
) -> Iterator[Prepared]:
    """Yield what became of each of ``parts``, in order: the same whatever does the work.

    ``MANY`` parts and more are prepared by one process per core, unless the tokenizer is not the
    same once it was saved and loaded there. Raises ``UserError`` when such a process dies.
    """
    left = iter(parts)
    first = [part for _, part in zip(range(MANY), left, strict=False)]
    cores = len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        workers: list[_Worker] = []
        if len(first) == MANY and cores > 1 and tokenizer_file(tokenizer) is not None:
            saved = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            setup = encode_setup(tokenizer, work, saved)
            workers = [_Worker(setup, stack) for _ in range(cores)]
            if {worker.ready() for worker in workers} != {tokenizer_digest(tokenizer)}:
                workers = []
        if workers:
            yield from _spread(workers, tokenizer, work, chain(first, left))
            return
    for part in chain(first, left):
        yield prepare_part(tokenizer, work, part)


class _Worker:
    """A child process and the part that it works on."""

    def __init__(self, setup: bytes, stack: ExitStack) -> None:
        """Start it; ``stack`` ends it."""
        self._child = Child.spawn({**os.environ, **_THREADS}, _CHILD)
        stack.callback(self._child.kill)
        self.link = Connection(os.dup(self._child.link.fileno()))
        stack.callback(self.link.close)
        self.send(setup)

    def ready(self) -> str:
        """Return the digest of its tokenizer, once it is loaded."""
        return self._next().decode()

    def send(self, message: bytes) -> None:
        try:
            self.link.send_bytes(message)
        except OSError:
            raise self._ended() from None

    def receive(self) -> Prepared:
        """Return the next answer. Raises ``UserError`` where the process has ended."""
        return decode_answer(self._next(), iter(self._next, b""))

    def _next(self) -> bytes:
        try:
            return self.link.recv_bytes()
        except (EOFError, OSError):
            raise self._ended() from None

    def _ended(self) -> UserError:
        return UserError(
            f"data: a process that prepares rows ended ({self._child.ending()}); rerun, with more"
            f" memory if it lacked any: each takes about 0.5 GiB, for {PART_ROWS} rows at a time"
        )


def _spread(
    workers: list[_Worker], tokenizer: "ChatTokenizer", work: Work, parts: Iterable[Part]
) -> Iterator[Prepared]:
    """Yield in order what ``workers`` make of ``parts``; few parts and answers are held."""
    numbered = enumerate(parts)
    read: deque[tuple[int, bytes]] = deque()
    idle, yielded = list(workers), 0
    busy: dict[Connection, tuple[int, _Worker]] = {}
    done: dict[int, Prepared] = {}
    while True:
        while len(read) < len(workers) and len(read) + len(busy) + len(done) < 4 * len(workers):
            if (following := next(numbered, None)) is None:
                break
            number, part = following
            if (message := encode_part(part)) is None:
                done[number] = prepare_part(tokenizer, work, part)
            else:
                read.append((number, message))
        while idle and read:
            worker, (number, message) = idle.pop(), read.popleft()
            worker.send(message)
            busy[worker.link] = (number, worker)
        for link in wait(list(busy)) if busy else ():
            assert isinstance(link, Connection)
            number, worker = busy.pop(link)
            done[number] = worker.receive()
            idle.append(worker)
        if not (busy or read or done):
            return
        while yielded in done:
            yield done.pop(yielded)
            yielded += 1

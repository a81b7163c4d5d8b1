"""The sources of a recipe, cut into parts of equal numbers of rows, as they are read, and
prepared one after the other or, many of them, in processes side by side."""

import os
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, count, islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.data.generators import generated_rows
from rlcore.data.messages import decode_answer, encode_part, encode_setup, tokenizer_digest
from rlcore.data.normalise import columns_of, form_of
from rlcore.data.prepare_part import PART_ROWS, Part, Prepared, Work, prepare_part
from rlcore.data.rows import RawTable
from rlcore.data.sources import open_source
from rlcore.models.tokenizer import tokenizer_file
from rlcore.rewards.link import Child
from schemas.data import DataSection
from schemas.environment import EnvironmentSection
from schemas.errors import UserError
from schemas.generators import GeneratedSource

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer


class Parts:
    """Iterates over the parts of all sources once; ``environment`` makes the rows of its kind.

    The form of a table hangs on the columns of all its rows. It is taken to be that of the first
    ones; where the others have columns that change it, the table is read again, and what it gave
    before counts no more.
    """

    def __init__(
        self, data: DataSection, seed: int, environment: EnvironmentSection | None
    ) -> None:
        self._data, self._seed, self._environment = data, seed, environment
        self._numbers, self._readings = count(), count()
        self._totals: Counter[str] = Counter()
        self._void: set[int] = set()

    @property
    def totals(self) -> dict[str, int]:
        """The number of rows of each source, complete at the end."""
        return dict(self._totals)

    def counts(self, reading: int) -> bool:
        """Whether the parts of a ``reading`` count; known at the end."""
        return reading not in self._void

    def __iter__(self) -> Iterator[Part]:
        """Yield the parts. Raises ``UserError`` as ``open_source`` and ``form_of`` do."""
        for index, source in enumerate(self._data.sources):
            if isinstance(source, GeneratedSource):
                yield from self._generated(source)
                continue
            for table, read in open_source(source, f"data.sources[{index}]"):
                yield from self._table(table, read)

    def _generated(self, source: GeneratedSource) -> Iterator[Part]:
        rows = list(generated_rows(source, self._seed, self._environment))
        name, reading = rows[0].source, next(self._readings)
        self._totals[name] += len(rows)
        for start in range(0, len(rows), PART_ROWS):
            made = rows[start : start + PART_ROWS]
            yield Part(next(self._numbers), reading, name, made=made)

    def _table(
        self, table: RawTable, read: Callable[[], Iterable[dict[str, Any]]]
    ) -> Iterator[Part]:
        columns: dict[str, None] = {}
        taken: str | None = None
        reading, total = next(self._readings), 0
        for rows in _cut(read()):
            total += len(rows)
            columns.update(columns_of(rows))
            if taken is None and total == len(rows):
                taken = _form_so_far(table, columns)
            if taken is not None:
                yield self._part(table, rows, taken, total - len(rows), reading)
        form = form_of(table, columns)
        self._totals[table.source] += total
        if form == taken:
            return
        self._void.add(reading)
        reading, total = next(self._readings), 0
        for rows in _cut(read()):
            yield self._part(table, rows, form, total, reading)
            total += len(rows)

    def _part(
        self, table: RawTable, rows: list[dict[str, Any]], form: str, start: int, reading: int
    ) -> Part:
        raw = replace(table, rows=rows)
        return Part(next(self._numbers), reading, table.source, raw, form, start)


def _cut(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    left = iter(rows)
    while some := list(islice(left, PART_ROWS)):
        yield some


def _form_so_far(table: RawTable, columns: dict[str, None]) -> str | None:
    try:
        return form_of(table, columns)
    except UserError:  # columns may be missing in the first rows
        return None


MANY = 16  # parts, 131,072 rows, from which starting processes (seconds each) pays
_CHILD = "rlcore.data.child"
# A child works on one core: libraries that start threads would contend.
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

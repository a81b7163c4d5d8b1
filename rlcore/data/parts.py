"""The sources of a recipe, cut into parts of equal numbers of rows, as they are read."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Any

from rlcore.data.generated import generated_rows
from rlcore.data.normalise import columns_of, form_of
from rlcore.data.part import PART_ROWS, Part
from rlcore.data.rows import RawTable
from rlcore.data.sources import open_source
from schemas.data import DataSection
from schemas.environment import EnvironmentSection
from schemas.errors import UserError
from schemas.generated import GeneratedSource


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

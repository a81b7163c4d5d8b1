"""The rows of a recipe's sources before any filter: all, in parts, or the first ones and how many
there are."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count as counting
from itertools import islice
from typing import TypeVar

from rlcore.data.generators import generated_rows
from rlcore.data.normalise import columns_of, form_of, normalise, with_truth
from rlcore.data.rows import RawTable, Reject, Row, said
from rlcore.data.sources import count_rows, open_source, source_files
from schemas.data import DataSection, GeneratedSource, MathSource, ReadSource
from schemas.environment import EnvironmentSection
from schemas.errors import UserError

PART_ROWS = 8192
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one source: ``raw`` ones of a form, the first with the number ``start``, or ``made``
    ones. ``number``: of the part."""

    number: int
    source: str
    raw: RawTable | None = None
    form: str = ""
    start: int = 0
    made: Sequence[Row] = ()

    def __len__(self) -> int:
        return len(self.made if self.raw is None else self.raw.rows)

    def normalised(self) -> tuple[list[Row], list[Reject]]:
        """Return the usable rows, and a Reject for each other one."""
        if self.raw is None:
            return list(self.made), []
        return normalise(self.raw, self.form, self.start)


def parts_of(
    data: DataSection, seed: int, environment: EnvironmentSection | None = None
) -> Iterator[Part]:
    """Yield the rows of all sources in parts; ``environment`` makes those of its kind.

    A table is read twice, as its form hangs on the columns of all its rows. Raises ``UserError`` as
    ``open_source`` and ``form_of`` do.
    """
    numbers = counting()
    for index, source in enumerate(data.sources):
        if isinstance(source, GeneratedSource):
            for _, made in _cut(generated_rows(source, seed, environment)):
                yield Part(next(numbers), made[0].source, made=made)
            continue
        for table, read in open_source(source, f"data.sources[{index}]"):
            found = columns_of(read())
            form = form_of(table, found)
            truthful = with_truth(table, form, found)
            for start, rows in _cut(read()):
                yield Part(next(numbers), table.source, replace(truthful, rows=rows), form, start)


def _cut(rows: Iterable[T]) -> Iterator[tuple[int, list[T]]]:
    """Yield ``rows`` in lists of ``PART_ROWS``, with the number of the first of each."""
    left = iter(rows)
    for start in counting(step=PART_ROWS):
        if not (some := list(islice(left, PART_ROWS))):
            return
        yield start, some


def read_rows(
    data: DataSection, seed: int, environment: EnvironmentSection | None = None
) -> list[Row]:
    """Return the usable rows of all sources. Raises ``UserError`` as ``parts_of`` does."""
    return [row for part in parts_of(data, seed, environment) for row in part.normalised()[0]]


def training_texts(
    data: DataSection, seed: int, environment: EnvironmentSection | None = None
) -> Iterator[str]:
    """Yield the text of every message of the training rows: what a tokenizer is trained on.

    Filters are not applied, so that a base model from scratch does not depend on them. Raises
    ``UserError`` as ``parts_of`` does.
    """
    for part in parts_of(data, seed, environment):
        for row in part.normalised()[0]:
            if row.split == "train":
                yield from (said([message]) for message in row.messages)


FIRST_ROWS = 64


@dataclass(frozen=True, slots=True)
class Peek:
    """One file of a source: its first rows, those that can be used and those that cannot, and how
    many rows it has.

    ``count``: at most the source's ``limit``; None where counting would fetch a remote file.
    """

    split: str
    rows: list[Row]
    rejects: list[Reject]
    count: int | None

    @property
    def prompts(self) -> int | None:
        """Rows that become prompts, before any is rejected; None when it is not known."""
        return self._counted([row.scored for row in self.rows])

    @property
    def demonstrations(self) -> int | None:
        """Rows that become demonstrations, before any is rejected; None when it is not known."""
        return self._counted([bool(row.solution) for row in self.rows])

    def _counted(self, holds: list[bool]) -> int | None:
        if not any(holds):
            return 0
        return self.count if all(holds) else None


def peek(source: ReadSource, where: str, *, first: int | None = FIRST_ROWS) -> list[Peek]:
    """Look at each file of ``source``; at none where it is read from the hub.

    ``where``: its dotted path. ``first``: rows that are read as a sample of the others; None: all
    of them. Raises ``UserError`` when a file does not exist, cannot be read, is of no known form,
    or has no rows.
    """
    found, files = [], source_files(source, where)  # none for the hub
    for (table, read), file in zip(open_source(source, where), files, strict=False):
        raw = replace(table, rows=list(islice(read(), first)))
        rows, rejects = _first_normalised(raw, f"{where}: '{file}'")
        chooses = isinstance(source, MathSource) and (source.levels or source.types)
        count = None if chooses else count_rows(file, setting=where)
        limited = count if count is None else min(count, source.limit or count)
        found.append(Peek(table.split, rows, rejects, limited))
    return found


def _first_normalised(table: RawTable, where: str) -> tuple[list[Row], list[Reject]]:
    if not table.rows:
        raise UserError(f"{where} holds no rows; give a file with at least one")
    try:
        return normalise(table)
    except UserError as error:
        raise UserError(f"{where} {str(error).removeprefix(f'{table.source} ')}") from None

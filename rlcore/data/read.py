"""The rows of a recipe's sources before any filter: all, or the first ones and how many there
are."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from rlcore.data.generators import generated_rows
from rlcore.data.normalise import normalise
from rlcore.data.rows import RawTable, Reject, Row, said
from rlcore.data.sources import count_rows, open_source, read_source, source_files
from schemas.data import DataSection, MathSource, ReadSource
from schemas.environment import EnvironmentSection
from schemas.errors import UserError
from schemas.generators import GeneratedSource


def read_rows(
    data: DataSection, seed: int, environment: EnvironmentSection | None = None
) -> tuple[list[Row], list[Reject], dict[str, int]]:
    """Return rows, rejects, and the number of raw rows per source; ``environment`` makes those of
    the kind of its name.

    Raises ``UserError`` as ``read_source`` and ``normalise`` do.
    """
    rows: list[Row] = []
    rejects: list[Reject] = []
    totals: Counter[str] = Counter()
    for good, bad in _normalised(data, seed, environment):
        good = list(good)
        rows += good
        rejects += bad
        totals.update(row.source for row in (*good, *bad))
    return rows, rejects, dict(totals)


def training_texts(
    data: DataSection, seed: int, environment: EnvironmentSection | None = None
) -> Iterator[str]:
    """Yield the text of every message of the training rows: what a tokenizer is trained on.

    Filters are not applied, so that a base model from scratch does not depend on them. What is not
    asked for is not generated. Raises ``UserError`` as ``read_rows`` does.
    """
    for rows, _ in _normalised(data, seed, environment):
        for row in rows:
            if row.split == "train":
                yield from (said([message]) for message in row.messages)


def _normalised(
    data: DataSection, seed: int, environment: EnvironmentSection | None
) -> Iterator[tuple[Iterable[Row], list[Reject]]]:
    """Yield rows and rejects of each table; each of its rows is one of the two."""
    for index, source in enumerate(data.sources):
        if isinstance(source, GeneratedSource):
            yield generated_rows(source, seed, environment), []
        else:
            yield from map(normalise, read_source(source, f"data.sources[{index}]"))


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
    found = []
    # none for the hub
    for (table, read), file in zip(
        open_source(source, where), source_files(source, where), strict=False
    ):
        raw = replace(table, rows=list(islice(read(), first)))
        rows, rejects = _first_normalised(raw, f"{where}: '{file}'")
        count = None if _chooses(source) else count_rows(file, setting=where)
        limited = count if count is None else min(count, source.limit or count)
        found.append(Peek(table.split, rows, rejects, limited))
    return found


def _chooses(source: ReadSource) -> bool:
    """Return whether a source takes some of a file's rows only."""
    return isinstance(source, MathSource) and bool(source.levels or source.types)


def _first_normalised(table: RawTable, where: str) -> tuple[list[Row], list[Reject]]:
    if not table.rows:
        raise UserError(f"{where} holds no rows; give a file with at least one")
    try:
        return normalise(table)
    except UserError as error:
        raise UserError(f"{where} {str(error).removeprefix(f'{table.source} ')}") from None

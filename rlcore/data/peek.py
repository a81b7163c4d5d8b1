"""The first rows of a recipe's sources, and how many each has: what can be known before the run."""

from collections import Counter
from dataclasses import dataclass

from rlcore.data.normalise import normalise
from rlcore.data.rows import RawTable, Reject, Row
from rlcore.data.screen import REMEDIES
from rlcore.data.sources import count_rows, read_source, source_files
from schemas.data import FileSource, Gsm8kSource, HubSource
from schemas.errors import UserError

FIRST_ROWS = 64


@dataclass(frozen=True, slots=True)
class Peek:
    """One file of a source: the usable ones of its first rows, and how many rows it has.

    ``count``: at most the source's ``limit``; None where counting would fetch a remote file.
    """

    split: str
    rows: list[Row]
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


def peek(source: Gsm8kSource | FileSource | HubSource, where: str) -> list[Peek]:
    """Look at each file of ``source``; at none where it is read from the hub.

    ``where``: its dotted path. Raises ``UserError`` when a file does not exist, cannot be read, is
    of no known form, has no rows, or none of its first rows can be used.
    """
    files = source_files(source)
    if not files:
        return []
    most = min(source.limit or FIRST_ROWS, FIRST_ROWS)
    tables = read_source(source.model_copy(update={"limit": most}), where)
    found = []
    for table, file in zip(tables, files, strict=True):
        rows = _usable(table, f"{where}: '{file}'")
        count = count_rows(file, setting=where)
        limited = count if count is None else min(count, source.limit or count)
        found.append(Peek(table.split, rows, limited))
    return found


def _usable(table: RawTable, where: str) -> list[Row]:
    if not table.rows:
        raise UserError(f"{where} holds no rows; give a file with at least one")
    try:
        rows, rejects = normalise(table)
    except UserError as error:
        raise UserError(f"{where} {str(error).removeprefix(f'{table.source} ')}") from None
    if not rows:
        raise UserError(f"{where}: {_why_none(rejects)}")
    return rows


def _why_none(rejects: list[Reject]) -> str:
    reason, _ = Counter(reject.reason for reject in rejects).most_common(1)[0]
    example = next(reject for reject in rejects if reject.reason == reason)
    return (
        f"none of its first {len(rejects)} rows can be used; '{reason}', as row {example.row}:"
        f" {example.detail}; {REMEDIES.get(reason, 'fix the rows')}"
    )

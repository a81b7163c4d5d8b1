"""The small columns of tables that lie in very many files, kept as one file per table.

Opening a Parquet file takes 0.2 ms, those of a million trajectories half a second per table. What
is kept counts for a file of an artifact only while that file was verified to have the digest that
it was copied under: it saves opening the file, not looking at it.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import duckdb

from rlcore.results.conditions import constants
from rlcore.results.index import Index

# Neither per token nor text of the policy or of a scorer.
COLUMNS: dict[str, tuple[str, ...]] = {
    "rollouts": (
        *("trajectory_id", "uid", "sample", "iteration", "prompt_tokens", "finish_reason"),
        *("stop_reason", "seed", "weight_version", "weight_digest"),
    ),
    "rewards": ("trajectory_id", "outcome", "score", "correct", "counts", "seconds"),
    "advantages": ("trajectory_id", "positive"),
    "metrics": ("stage", "step", "name", "value"),
    "spans": ("iteration", "lane", "what", "began_s", "seconds"),
}
LEAST_FILES = 200  # below that the files themselves are as fast
_LEFT_OUT = 0.25  # share of files not in it, from which on it is made again


@dataclass(frozen=True, slots=True)
class HeldTable:
    """The verified file of a table in one artifact; ``place``: ``<kind>/<key>``."""

    place: str
    sha256: str
    path: str


class Held:
    """What is kept of a store's tables, for one connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, index: Index) -> None:
        self._connection, self._index = connection, index

    def load(
        self, table: str, files: Sequence[HeldTable], columns: Collection[str]
    ) -> list[int | None]:
        """Create ``_store.<table>_held`` with ``columns`` and ``source``; return the source of each
        file, None where its rows are not in it. Made (again) where too much is missing."""
        missing: list[int | None] = [None] * len(files)
        if len(files) < LEAST_FILES or not set(columns) <= set(COLUMNS.get(table, ())):
            return missing
        found = self._restore(table, files, columns)
        if found.count(None) > _LEFT_OUT * len(files):
            self._make(table, files)
            found = self._restore(table, files, columns)
        return found

    def _restore(
        self, table: str, files: Sequence[HeldTable], columns: Collection[str]
    ) -> list[int | None]:
        number: dict[tuple[str, str], int] = {}

        def create(path: str) -> None:
            sources = json.loads(self._index.kept.about(path))
            self._connection.execute(
                f"CREATE OR REPLACE TABLE _store.{table}_held AS"
                f" SELECT {', '.join(('source', *columns))} FROM read_parquet(?)",
                [path],
            )
            number.update({(place, sha256): i for i, (place, sha256) in enumerate(sources)})

        self._index.kept.read(_name(table), create)
        return [number.get((file.place, file.sha256)) for file in files]

    def _make(self, table: str, files: Sequence[HeldTable]) -> None:
        """Copy the columns of all files that have not only just changed."""

        def unchanged(file: HeldTable) -> bool:
            return self._index.is_unchanged(file.place, f"{table}.parquet", file.path)

        copied = [file for file in files if unchanged(file)]
        if not copied:
            return
        columns = ", ".join(f"t.{column}" for column in COLUMNS[table])
        self._connection.execute(
            f"CREATE OR REPLACE TABLE _store.{table}_sources AS"
            " SELECT unnest(range(len($paths::VARCHAR[])))::INTEGER AS source,"
            " unnest($paths::VARCHAR[]) AS filename",
            {"paths": [file.path for file in copied]},
        )
        self._index.kept.keep(
            _name(table),
            f"SELECT s.source, {columns}"
            f" FROM {parquet_rows([file.path for file in copied])} t"
            f" JOIN _store.{table}_sources s USING (filename)",
            about=json.dumps([(file.place, file.sha256) for file in copied]),
            still_true=lambda: all(map(unchanged, copied)),
        )


def parquet_rows(paths: Sequence[str]) -> str:
    """Return the relation of the rows of Parquet files, with the ``filename`` of each."""
    return f"read_parquet([{constants(paths)}], filename = true)"


def _name(table: str) -> str:
    return f"rows_{table}"

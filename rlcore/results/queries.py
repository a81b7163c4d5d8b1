"""SQL over everything a store holds (DuckDB), complete artifacts only.

There is a view per table of ``schemas.tables``, over all artifacts, and one per name of
``schemas.table_list.VIEWS``; ``rl-pipeline tables`` prints the columns.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import polars as pl

from rlcore.results.conditions import ALONE, constants, reason_of
from rlcore.results.index import Index
from rlcore.results.views import NAMES, Views, column_descriptions
from rlcore.store.reader import ArtifactReader
from schemas.errors import UserError, did_you_mean


def query(
    store: ArtifactReader, sql: str, on_damage: Callable[[str], None] | None = None
) -> pl.DataFrame:
    """Return the rows of one SELECT over the store's views; it can neither write nor read other
    files.

    An artifact whose manifest is damaged is left out and reported to ``on_damage``, and so is a
    table in an older schema, whose columns mean something else; without ``on_damage`` these raise
    DamagedArtifact and UserError. Raises DamagedArtifact for damage of a file that is read,
    UserError for SQL that does not parse, bind or select, ArtifactError where the store cannot be
    read.
    """
    with selected(store, sql, on_damage) as relation:
        return relation.pl()


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows of a SELECT, each as long as ``columns``."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        """Return each row by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def answer(
    store: ArtifactReader,
    sql: str,
    on_damage: Callable[[str], None] | None = None,
    *,
    limit: int | None = None,
) -> QueryResult:
    """Return the rows of a SELECT as Python values, ``limit`` at most; else as ``query``."""
    with selected(store, sql, on_damage) as relation:
        found = relation if limit is None else relation.limit(limit)
        return QueryResult(relation.columns, found.fetchall())


def describe(view: str) -> list[tuple[str, str, str]]:
    """Return the columns of a table or view, in order, as a query sees them: name, type in SQL
    (``FLOAT[]``), and what it holds.

    Raises UserError, naming the nearest, for a name that is none of ``NAMES``.
    """
    if view not in NAMES:
        raise UserError(
            f"'{view}' is not a table{did_you_mean(view, NAMES)}; tables: {', '.join(NAMES)}"
        )
    with tempfile.TemporaryDirectory() as empty:
        found = answer(ArtifactReader(empty), f"DESCRIBE {view}")
    texts = column_descriptions(view)
    return [(name, of.replace('"', ""), texts[name]) for name, of, *_ in found.rows]


@contextmanager
def selected(
    store: ArtifactReader, sql: str, on_damage: Callable[[str], None] | None
) -> Iterator[duckdb.DuckDBPyRelation]:
    """Yield the SELECT as a relation over the views that it names, to be fetched within the block;
    see ``query``."""
    with duckdb.connect(config=ALONE) as connection:
        try:
            tokens = _tokens(sql)
            _refuse_other_than_one_select(connection, sql, tokens)
            index = Index(connection, store)
            index.load(on_damage)
            views = Views(connection, index, on_damage)
            views.create({text.strip('"').lower() for _, text in tokens})
            index.save()
            # From here on it reads these files and no other.
            connection.execute(f"SET allowed_paths = [{constants(views.paths)}]")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            yield connection.sql(sql)
        except duckdb.Error as error:
            raise UserError(
                f"the query failed: {reason_of(error)}; views: {', '.join(NAMES)}"
            ) from None


def _tokens(sql: str) -> list[tuple[int, str]]:
    """Return the words and signs of ``sql`` with the first byte of each in UTF-8, string constants
    and comments left out."""
    content, found = sql.encode(), duckdb.tokenize(sql)
    starts = [*(start for start, _ in found), len(content)]
    left_out = (duckdb.token_type.string_const, duckdb.token_type.comment)
    return [
        (start, content[start:end].decode().strip())
        for (start, kind), end in zip(found, starts[1:], strict=True)
        if kind not in left_out
    ]


def _refuse_other_than_one_select(
    connection: duckdb.DuckDBPyConnection, sql: str, tokens: Sequence[tuple[int, str]]
) -> None:
    kinds = [statement.type for statement in connection.extract_statements(sql)]
    if kinds == [duckdb.StatementType.SELECT]:
        return
    found = ", ".join(kind.name for kind in kinds) or "nothing"
    refused = UserError(f"one SELECT is expected, found {found}")
    if kinds != [duckdb.StatementType.MULTI]:
        raise refused
    # DuckDB splits what holds a PIVOT into several statements, be it a SELECT or a COPY that would
    # write into the store. In brackets the grammar allows a SELECT only.
    end = next((start for start, text in tokens if text == ";"), None)
    try:
        connection.extract_statements(f"FROM ({sql.encode()[:end].decode()}\n)")
    except duckdb.ParserException:
        raise refused from None

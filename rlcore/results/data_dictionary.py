"""What SQL can ask a store for: its views, their columns, types and meanings."""

import tempfile
from dataclasses import dataclass

import polars as pl
from polars.datatypes import DataTypeClass

from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from schemas.columns import TABLES, VIEWS
from schemas.errors import UserError, did_you_mean
from schemas.tables import column_descriptions

NAMES = (*TABLES, *VIEWS)
_SQL_TYPES: dict[pl.DataType | DataTypeClass, str] = {
    pl.String(): "VARCHAR",
    pl.Boolean(): "BOOLEAN",
    pl.Int32(): "INTEGER",
    pl.Int64(): "BIGINT",
    pl.Float32(): "FLOAT",
    pl.Float64(): "DOUBLE",
}


@dataclass(frozen=True, slots=True)
class Column:
    """``type``: in SQL, e.g. ``FLOAT[]``."""

    name: str
    type: str
    description: str


def describe(view: str) -> list[Column]:
    """Return the columns of a table or view, in order, as a query sees them.

    Raises UserError, naming the nearest, for a name that is none of ``NAMES``.
    """
    if view not in NAMES:
        raise UserError(
            f"'{view}' is not a table{did_you_mean(view, NAMES)}; tables: {', '.join(NAMES)}"
        )
    with tempfile.TemporaryDirectory() as empty:
        schema = query(ArtifactStore(empty), f"SELECT * FROM {view}").schema
    texts = column_descriptions(view)
    return [Column(name, _sql_type(dtype), texts[name]) for name, dtype in schema.items()]


def _sql_type(dtype: pl.DataType | DataTypeClass) -> str:
    match dtype:
        case pl.List():
            return f"{_sql_type(dtype.inner)}[]"
        case pl.Struct():
            fields = (f"{field.name} {_sql_type(field.dtype)}" for field in dtype.fields)
            return f"STRUCT({', '.join(fields)})"
    return _SQL_TYPES[dtype]

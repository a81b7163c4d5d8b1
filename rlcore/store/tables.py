"""Tables in artifacts: the Pandera contract on the way in and out, and byte-stable Parquet.

Equal content gives equal bytes (one pyarrow version): columns in the contract's order, bounded row
groups, and neither times nor run ids nor recipes in the file. pandera takes seconds to import: it
is imported when used.
"""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.datatypes import DataTypeClass

from rlcore.store.checks import check_table_name, check_version, damaged
from schemas.errors import UserError
from schemas.versions import schema_version

ROW_GROUP_ROWS = 8192
_BLOCK_ROWS = 8 * ROW_GROUP_ROWS  # validated at once: Pandera takes as long for a few rows
_SHOWN_CHECKS = 5
_SHOWN_ROWS = 3
_SHOWN_CHARS = 80

# (table, file sha256) pairs that this process has validated.
_VALIDATED: set[tuple[str, str]] = set()

_SCALARS: dict[DataTypeClass, pa.DataType] = {
    pl.String: pa.string(),
    pl.Boolean: pa.bool_(),
    pl.Int8: pa.int8(),
    pl.Int16: pa.int16(),
    pl.Int32: pa.int32(),
    pl.Int64: pa.int64(),
    pl.Float32: pa.float32(),
    pl.Float64: pa.float64(),
}


def encode_table(name: str, frame: pl.DataFrame, kind: str) -> bytes:
    """Return ``frame`` as zstd Parquet bytes, checked against the contract of table ``name``.

    Raises UserError naming the table, column, check and first bad rows.
    """
    validate(name, frame)
    schema = _file_schema(name, kind)
    sink = io.BytesIO()
    with _writer(sink, schema) as writer:
        _write_groups(writer, schema, frame)
    return sink.getvalue()


def _file_schema(name: str, kind: str) -> pa.Schema:
    return arrow_schema(name).with_metadata({"rlp.kind": kind, "rlp.schema": schema_version(name)})


def _writer(where: io.BytesIO | Path, schema: pa.Schema) -> pq.ParquetWriter:
    # Dictionaries are for words that repeat: one of numbers takes longer and makes larger files.
    words: Any = [field.name for field in schema if pa.types.is_string(field.type)]
    return pq.ParquetWriter(where, schema, compression="zstd", use_dictionary=words)


def _write_groups(writer: pq.ParquetWriter, schema: pa.Schema, frame: pl.DataFrame) -> None:
    # One chunk per column, so that the pages do not depend on how the frame was assembled.
    frame = _in_order(frame, schema.names).rechunk()
    for start in range(0, max(frame.height, 1), ROW_GROUP_ROWS):
        part = frame.slice(start, ROW_GROUP_ROWS).to_arrow()
        writer.write_table(part.cast(schema), row_group_size=ROW_GROUP_ROWS)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table that ``TableWriter`` has written to a file, for ``ArtifactStore.put``."""

    path: Path
    rows: int


class TableWriter:
    """Writes table ``name`` to the file ``path``, given parts of its rows in order: the bytes are
    those of ``encode_table``, whatever the parts.

    Some ``_BLOCK_ROWS`` rows are held, and 8 bytes of each before. ``write`` and the end raise
    UserError as ``encode_table`` does.
    """

    def __init__(self, name: str, path: Path, kind: str) -> None:
        check_table_name(name)
        self.rows = 0
        self._name, self._path = name, path
        self._schema = _file_schema(name, kind)
        self._unique: dict[str, list[np.ndarray]] = {c: [] for c in _unique_columns(name)}
        self._parts: list[pl.DataFrame] = []
        self._held = 0
        self._writer = _writer(path, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None and (self._held or not self.rows):
                self._write_held(self._held)
        finally:
            self._writer.close()
        if error is None:
            self._check_unique()

    def write(self, frame: pl.DataFrame) -> None:
        """Add the rows of ``frame`` at the end; a table without rows is given its columns."""
        self._parts.append(frame)
        self._held += frame.height
        if self._held > _BLOCK_ROWS:
            self._write_held(self._held // ROW_GROUP_ROWS * ROW_GROUP_ROWS)

    def _write_held(self, count: int) -> None:
        """Write the first ``count`` rows held: whole row groups, or all that are left."""
        held = pl.concat(self._parts)
        block = held.head(count)
        validate(self._name, block)
        _write_groups(self._writer, self._schema, block)
        for column, hashes in self._unique.items():
            hashes.append(block[column].hash().to_numpy())
        self.rows += count
        self._held -= count
        self._parts = [held.slice(count)]

    def _check_unique(self) -> None:
        for hashes in self._unique.values():
            ordered = np.concatenate(hashes)
            ordered.sort()
            if (ordered[1:] == ordered[:-1]).any():
                validate(self._name, pl.read_parquet(self._path))  # two values may share a hash


def decode_table(name: str, path: Path, digest: str, uri: str) -> pl.DataFrame:
    """Return the table in the Parquet file at ``path``, whose digest is already verified.

    Raises ArtifactError when it is not Parquet, has no or a newer schema version, or breaks its
    contract.
    """
    where = f"{uri}/{path.name}"
    try:
        metadata = pl.read_parquet_metadata(path)
        frame = pl.read_parquet(path)
    except pl.exceptions.PolarsError as error:
        first_line = str(error).partition("\n")[0]
        raise damaged(uri, f"{where} is not a readable Parquet file ({first_line})") from None
    added = check_version(name, metadata.get("rlp.schema", ""), where, uri)
    frame = frame.with_columns(pl.lit(None, polars_schema(name)[c]).alias(c) for c in added)
    if (name, digest) not in _VALIDATED:
        try:
            validate(name, frame)
        except UserError as error:
            raise damaged(uri, f"{where}: {error}") from None
        remember_valid(name, digest)
    return frame


def _in_order(frame: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    return frame if frame.columns == columns else frame.select(columns)


def schema_versions(tables: Iterable[str]) -> dict[str, str]:
    """Return table -> ``name/vN`` of the contracts we write."""
    return {name: schema_version(name) for name in tables}


def remember_valid(name: str, digest: str) -> None:
    """Record that the table ``name`` in the file of this digest keeps its contract."""
    _VALIDATED.add((name, digest))


def validate(name: str, frame: pl.DataFrame) -> None:
    """Check ``frame`` against the contract of table ``name``, collecting every failure.

    Raises UserError: one sentence, then a line per failed check with its first rows.
    """
    from pandera.errors import SchemaErrors

    from schemas.tables import TABLES

    check_table_name(name)
    if not isinstance(frame, pl.DataFrame):
        # Pandera checks only the types of a LazyFrame: bad values would pass silently.
        raise UserError(f"table {name!r} must be a polars DataFrame, not {type(frame).__name__}")
    try:
        TABLES[name].validate(frame, lazy=True)
    except SchemaErrors as error:
        lines = _failures(error.failure_cases)
        raise UserError(
            f"table {name!r} breaks its contract {schema_version(name)}; "
            f"fix its producer:\n" + "\n".join(lines)
        ) from None


@cache
def polars_schema(name: str) -> dict[str, pl.DataType]:
    """Return the type of each column of the table ``name``, in order."""
    from schemas.tables import TABLES

    columns = TABLES[name].to_schema().columns
    return {column: spec.dtype.type for column, spec in columns.items()}


def _failures(cases: pl.DataFrame) -> list[str]:
    groups = cases.group_by("column", "check", maintain_order=True)
    lines = []
    for (column, check), rows in groups:
        lines.append(f"  - {_subject(str(column), str(check))}: {_first_rows(rows)}")
    if len(lines) > _SHOWN_CHECKS:
        lines[_SHOWN_CHECKS:] = [f"  - and {len(lines) - _SHOWN_CHECKS} more failed checks"]
    return lines


def _subject(column: str, check: str) -> str:
    named = {
        "column_in_dataframe": "missing column",
        "column_in_schema": "undeclared column",
        "field_uniqueness": f"column {column!r}, values must be unique",
        "not_nullable": f"column {column!r}, values must not be null",
    }
    # Pandera reports checks of the whole frame under the name of the schema's class.
    frame_wide = column == "Table"
    return named.get(check, f"check {check}" if frame_wide else f"column {column!r}, {check}")


def _first_rows(rows: pl.DataFrame) -> str:
    shown = []
    for case, index in rows.select("failure_case", "index").head(_SHOWN_ROWS).iter_rows():
        text = str(case)
        text = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
        shown.append(f"found {text}" if index is None else f"row {index}: {text}")
    more = rows.height - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


@cache
def _unique_columns(name: str) -> tuple[str, ...]:
    from schemas.tables import TABLES

    schema = TABLES[name].to_schema()
    assert not schema.unique, "of single columns only"
    return tuple(column for column, spec in schema.columns.items() if spec.unique)


@cache
def arrow_schema(name: str) -> pa.Schema:
    """Return the Parquet columns of table ``name``, in the contract's order."""
    from schemas.tables import TABLES

    columns = TABLES[name].to_schema().columns
    return pa.schema([(column, _arrow_type(spec.dtype.type)) for column, spec in columns.items()])


def _arrow_type(dtype: pl.DataType | DataTypeClass) -> pa.DataType:
    # 32-bit offsets (list, string), which every Parquet reader understands; polars' own are 64-bit.
    if isinstance(dtype, pl.List):
        return pa.list_(_arrow_type(dtype.inner))
    if isinstance(dtype, pl.Struct):
        return pa.struct([(field.name, _arrow_type(field.dtype)) for field in dtype.fields])
    return _SCALARS[dtype.base_type()]


def sql_types(table: str) -> dict[str, str]:
    """Return the SQL type of each column of ``table``, in order, as DuckDB names it."""
    return {field.name: _sql_type(field.type) for field in arrow_schema(table)}


def _sql_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"{_sql_type(kind.value_type)}[]"
    if pa.types.is_struct(kind):
        return f"STRUCT({', '.join(f'{field.name} {_sql_type(field.type)}' for field in kind)})"
    return _SQL_NAMES[str(kind)]


_SQL_NAMES = {
    "string": "VARCHAR",
    "bool": "BOOLEAN",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
}

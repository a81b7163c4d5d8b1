"""Tables in artifacts: the Pandera contract on the way in and out, and byte-stable Parquet.

Equal content gives equal bytes (one pyarrow version): columns in the contract's order, bounded row
groups, and neither times nor run ids nor recipes in the file.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.datatypes import DataTypeClass

from rlcore.store.checks import check_table_name, check_version, damaged
from schemas.errors import UserError
from schemas.table_list import schema_version

if TYPE_CHECKING:
    from pandera.polars import DataFrameSchema

ROW_GROUP_ROWS = 8192
_BLOCK_ROWS = 8 * ROW_GROUP_ROWS  # validated at once: Pandera takes as long for a few rows
_SHOWN_CHECKS = 5
_SHOWN_ROWS = 3
_SHOWN_CHARS = 80

_SCALARS: dict[DataTypeClass, pa.DataType] = {
    pl.String: pa.string(),
    pl.Boolean: pa.bool_(),
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
    sink = io.BytesIO()
    with _writer(sink, name, kind) as writer:
        _write_groups(writer, frame)
    return sink.getvalue()


def _writer(where: io.BytesIO | Path, name: str, kind: str) -> pq.ParquetWriter:
    about = {"rlp.kind": kind, "rlp.schema": schema_version(name)}
    schema = arrow_schema(name).with_metadata(about)
    # Dictionaries are for words that repeat: one of numbers takes longer and makes larger files.
    words: Any = [field.name for field in schema if pa.types.is_string(field.type)]
    return pq.ParquetWriter(where, schema, compression="zstd", use_dictionary=words)


def _write_groups(writer: pq.ParquetWriter, frame: pl.DataFrame) -> None:
    # One chunk per column, so that the pages do not depend on how the frame was assembled.
    frame = frame.select(writer.schema.names).rechunk()
    for start in range(0, max(frame.height, 1), ROW_GROUP_ROWS):
        part = frame.slice(start, ROW_GROUP_ROWS).to_arrow()
        writer.write_table(part.cast(writer.schema), row_group_size=ROW_GROUP_ROWS)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table that ``write_table`` has written to a file, for ``ArtifactStore.put``."""

    path: Path
    rows: int


def write_table(name: str, path: Path, parts: Iterable[pl.DataFrame], kind: str) -> TableFile:
    """Write table ``name`` to the file ``path`` from ``parts`` of its rows, in order; a table
    without rows has one part with its columns. The bytes are those of ``encode_table``.

    Some ``_BLOCK_ROWS`` rows are held, and 8 bytes of each before. Raises UserError as
    ``encode_table`` does.
    """
    rows, columns = 0, _contract(name).columns.items()
    seen: dict[str, list[np.ndarray]] = {column: [] for column, spec in columns if spec.unique}
    with _writer(path, name, kind) as writer:
        for block in _blocks(parts):
            validate(name, block)
            _write_groups(writer, block)
            for column, hashes in seen.items():
                hashes.append(block[column].hash().to_numpy())
            rows += block.height
    for hashes in seen.values():
        ordered = np.sort(np.concatenate(hashes))
        if (ordered[1:] == ordered[:-1]).any():
            validate(name, pl.read_parquet(path))  # two values may share a hash
    return TableFile(path, rows)


def _blocks(parts: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the rows of ``parts`` in whole row groups, and what is left last."""
    held: list[pl.DataFrame] = []
    count, began = 0, False
    for part in parts:
        held.append(part)
        count += part.height
        if count > _BLOCK_ROWS:
            rows = pl.concat(held)
            whole = count // ROW_GROUP_ROWS * ROW_GROUP_ROWS
            yield rows.head(whole)
            held, count, began = [rows.slice(whole)], count - whole, True
    if count or not began:
        yield pl.concat(held)


def decode_table(name: str, path: Path, uri: str) -> pl.DataFrame:
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
    try:
        validate(name, frame)
    except UserError as error:
        raise damaged(uri, f"{where}: {error}") from None
    return frame


def validate(name: str, frame: pl.DataFrame) -> None:
    """Check ``frame`` against the contract of table ``name``, collecting every failure.

    Raises UserError: one sentence, then a line per failed check with its first rows.
    """
    from pandera.errors import SchemaErrors

    check_table_name(name)
    if not isinstance(frame, pl.DataFrame):
        # Pandera checks only the types of a LazyFrame: bad values would pass silently.
        raise UserError(f"table {name!r} must be a polars DataFrame, not {type(frame).__name__}")
    try:
        _contract(name).validate(frame, lazy=True)
    except SchemaErrors as error:
        lines = _failures(name, error.failure_cases)
        raise UserError(
            f"table {name!r} breaks its contract {schema_version(name)}; "
            f"fix its producer:\n" + "\n".join(lines)
        ) from None


def _contract(name: str) -> "DataFrameSchema":
    # Whoever asks what is in a store reads no table, and need not wait seconds for pandera.
    from schemas.tables import TABLES

    return TABLES[name]


def polars_schema(name: str) -> dict[str, pl.DataType]:
    """Return the type of each column of the table ``name``, in order."""
    return {column: spec.dtype.type for column, spec in _contract(name).columns.items()}


def column_texts(name: str) -> dict[str, str]:
    """Return what each column of the table ``name`` holds, in order."""
    return {column: spec.description for column, spec in _contract(name).columns.items()}


def _failures(name: str, cases: pl.DataFrame) -> list[str]:
    groups = cases.group_by("column", "check", maintain_order=True)
    lines = []
    for (column, check), rows in groups:
        lines.append(f"  - {_subject(name, str(column), str(check))}: {_first_rows(rows)}")
    if len(lines) > _SHOWN_CHECKS:
        lines[_SHOWN_CHECKS:] = [f"  - and {len(lines) - _SHOWN_CHECKS} more failed checks"]
    return lines


def _subject(name: str, column: str, check: str) -> str:
    named = {
        "column_in_dataframe": "missing column",
        "column_in_schema": "undeclared column",
        "field_uniqueness": f"column {column!r}, values must be unique",
        "not_nullable": f"column {column!r}, values must not be null",
    }
    of_one = column in polars_schema(name)  # others are of several columns
    return named.get(check, f"column {column!r}, {check}" if of_one else f"check {check}")


def _first_rows(rows: pl.DataFrame) -> str:
    shown = []
    for case, index in rows.select("failure_case", "index").head(_SHOWN_ROWS).iter_rows():
        text = str(case)
        text = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
        shown.append(f"found {text}" if index is None else f"row {index}: {text}")
    more = rows.height - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def arrow_schema(name: str) -> pa.Schema:
    """Return the Parquet columns of table ``name``, in the contract's order."""
    return pa.schema([(c, _arrow_type(dtype)) for c, dtype in polars_schema(name).items()])


def _arrow_type(dtype: pl.DataType | DataTypeClass) -> pa.DataType:
    # 32-bit offsets (list, string), which every Parquet reader understands; polars' own are 64-bit.
    if isinstance(dtype, pl.List):
        return pa.list_(_arrow_type(dtype.inner))
    if isinstance(dtype, pl.Struct):
        return pa.struct([(field.name, _arrow_type(field.dtype)) for field in dtype.fields])
    return _SCALARS[dtype.base_type()]

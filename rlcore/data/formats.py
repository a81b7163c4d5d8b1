"""The formats that rows are read from: Parquet, JSON Lines, JSON, CSV, the last three compressed
too."""

import csv
import io
import sys
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlcore.bounded import read_json
from schemas.errors import UserError

PARQUET = ".parquet"
# Endings of one row after the other; a folder of such files is read as one.
SHARDS = (PARQUET, ".jsonl", ".ndjson", ".csv", ".tsv")
SUFFIXES = (*SHARDS, ".json")
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz"}
READ = f"{', '.join(SUFFIXES)}, and all but Parquet as {', '.join(COMPRESSIONS)}"
# A file that unfolds to more than both is no data but a bomb: a few MB can hold a TB.
UNFOLDED, TIMES = 2 << 30, 200
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


def format_of(path: str) -> tuple[str, str | None]:
    """Return the ending of a path or URL that says its format, and its compression, if any.

    >>> format_of("rows.jsonl.gz"), format_of("https://host/rows.CSV?version=2")
    (('.jsonl', 'gzip'), ('.csv', None))
    """
    suffixes = PurePath(path.partition("?")[0] if "://" in path else path).suffixes
    endings = [suffix.lower() for suffix in suffixes] or [""]
    if endings[-1] in COMPRESSIONS and len(endings) > 1 and endings[-2] != PARQUET:
        return endings[-2], COMPRESSIONS[endings[-1]]
    return endings[-1], None


class Unfolded(io.RawIOBase):
    """The bytes of a compressed ``file`` of ``size`` bytes, called ``path``.

    Reading raises ``UserError`` where there are more than ``UNFOLDED`` and ``TIMES`` its size."""

    def __init__(self, file: Any, size: int, path: str) -> None:
        self._file, self._size, self._path, self._read = file, size, path, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer``; return the number of bytes."""
        found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        self._read += len(found)
        check_unfolded(self._read, self._size, self._path)
        return len(found)


def check_unfolded(read: int, size: int, path: str) -> None:
    """Raise ``UserError`` where ``read`` bytes of a file of ``size`` bytes are too many."""
    if read > max(UNFOLDED, TIMES * size):
        raise UserError(
            f"{path} has {size:,} bytes and unfolds to more than {read >> 20:,} MiB; write it with"
            " less text that repeats, or in several files"
        )


def rows_in(file: Any, path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file that was opened in binary mode, uncompressed; ``path`` names it.

    Raises ``UserError`` naming the line of what is not of the file's format.
    """
    suffix, _ = format_of(path)
    if suffix in _SEPARATORS:
        return _csv(file, path, _SEPARATORS[suffix])
    return {PARQUET: _parquet, ".json": _json}.get(suffix, _jsonl)(file, path)


def count_in(file: Any, path: str) -> int:
    """Return the number of rows that ``rows_in`` yields; a line of JSONL is counted unparsed."""
    suffix, _ = format_of(path)
    if suffix == PARQUET:
        return pq.ParquetFile(file).metadata.num_rows
    if suffix in (".jsonl", ".ndjson"):
        return sum(1 for line in file if line.strip())
    return sum(1 for _ in rows_in(file, path))


def _parquet(file: Any, path: str) -> Iterator[dict[str, Any]]:
    try:
        size, unfolded = file.seek(0, io.SEEK_END), 0
        table = pq.ParquetFile(file)
        for batch in table.iter_batches(batch_size=256):  # whole nested columns do not convert
            rows = _decoded(batch)
            unfolded += rows.nbytes
            check_unfolded(unfolded, size, path)
            yield from _written(rows).to_pylist()
    except pa.ArrowInvalid as error:
        raise UserError(
            f"{path} is not a readable Parquet file ({str(error).partition('.')[0]}); write it"
            " again"
        ) from error


def _decoded(batch: Any) -> Any:
    """Return ``batch`` with the values of columns that hold numbers of a dictionary."""
    for index, field in enumerate(batch.schema):
        if pa.types.is_dictionary(field.type):
            batch = batch.set_column(index, field.name, batch.column(index).dictionary_decode())
    return batch


def _written(batch: Any) -> Any:
    """Return ``batch`` with values of float32 as the decimals they were written from: .1, not
    .10000000149."""
    for index, field in enumerate(batch.schema):
        text, exact = (_floats_as(kind, field.type) for kind in (pa.string(), pa.float64()))
        if text != field.type:
            column = batch.column(index).cast(text).cast(exact)
            batch = batch.set_column(index, field.name, column)
    return batch


def _floats_as(kind: Any, of: Any) -> Any:
    """Return the Arrow type ``of`` with ``kind`` for each float32 within it."""
    if of == pa.float32():
        return kind
    if pa.types.is_struct(of):
        return pa.struct([field.with_type(_floats_as(kind, field.type)) for field in of])
    if pa.types.is_list(of):
        return pa.list_(_floats_as(kind, of.value_type))
    if pa.types.is_large_list(of):
        return pa.large_list(_floats_as(kind, of.value_type))
    return of


def _jsonl(file: Any, path: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield _object(line, f"{path} line {number}")


def _json(file: Any, path: str) -> Iterator[dict[str, Any]]:
    try:
        rows = read_json(file.read())
    except ValueError as error:
        lines = ", or rename it to .jsonl if each line is a row" if "Extra" in str(error) else ""
        raise UserError(f"{path} is not JSON ({error}); fix it{lines}") from error
    if not isinstance(rows, list):
        raise UserError(
            f"{path} holds a JSON {type(rows).__name__}, not an array of rows; write an array, or"
            " one row per line as .jsonl"
        )
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(f"{path} row {index} is not a JSON object; fix or remove it")
        yield row


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = read_json(line)
    except ValueError as error:
        raise UserError(f"{where} is not JSON ({error}); fix or remove that line") from error
    if not isinstance(row, dict):
        raise UserError(f"{where} is not a JSON object; fix or remove that line")
    return row


def _csv(file: Any, path: str, separator: str) -> Iterator[dict[str, Any]]:
    """Yield each line's fields as text, so that ``007`` and ``1.50`` stay; an empty one as None."""
    csv.field_size_limit(sys.maxsize)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    lines = csv.reader(text, delimiter=separator, strict=True)
    try:
        names = next(lines, [])
        _check_names(names, path)
        for fields in lines:
            if fields and len(fields) != len(names):
                raise UserError(
                    f"{path} line {lines.line_num} has {len(fields)} fields and the first line"
                    f" {len(names)}; put quotes around a field that holds a separator"
                )
            if fields:
                yield {name: field or None for name, field in zip(names, fields, strict=True)}
    except csv.Error as error:
        raise UserError(f"{path} line {lines.line_num} is not CSV ({error}); fix it") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error.reason}); save it as UTF-8") from error


def _check_names(names: list[str], path: str) -> None:
    if len(names) == 1 and any(sign in names[0] for sign in ";\t|"):
        raise UserError(
            f"{path} has one column, '{names[0]}'; separate columns by commas (.csv) or tabs (.tsv)"
        )
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{path} has the column '{repeated[0]}' twice; rename one")

"""The files behind a path of a recipe, and the formats that rows are read from."""

import csv
import glob
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from rlcore.store.inputs import expanded_path
from rlcore.store.limits import read_json
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
    """Return ``batch`` with float32 as the decimals written: .1, not .10000000149."""
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


# What names of files call a split; of one folder all rows are of one.
_SPLIT = re.compile(r"(?<![a-z])(train|test|valid|val|dev|eval)(?:ing|idation|uation)?(?![a-z])")


def is_pattern(path: str) -> bool:
    """Return whether ``path`` has wildcards: ``*``, ``?``, ``[...]``; ``**`` for folders at any
    depth. In a URL ``?`` begins its query; a local file of that very name is no pattern.

    >>> is_pattern("rows/*.jsonl"), is_pattern("https://host/rows.jsonl?version=2")
    (True, False)
    """
    signs = "*[" if "://" in path else "*?["
    if not any(sign in path for sign in signs):
        return False
    return "://" in path or not Path(path).expanduser().is_file()


def matched_files(path: str, setting: str) -> list[str]:
    """Return the files that ``path`` names, sorted by name: those of a pattern, those of a folder
    (a URL of one ends in "/"), else the path itself, its variables replaced.

    ``setting`` is named in errors. Raises UserError where a pattern matches no file, a folder does
    not hold files of one format and split, or the storage cannot be listed.
    """
    path = expanded_path(path, setting)
    if not is_pattern(path):
        is_folder = path.endswith("/") if "://" in path else Path(path).expanduser().is_dir()
        return _in_folder(path.rstrip("/"), setting) if is_folder else [path]
    found = _listed(path, setting) if "://" in path else _globbed(path)
    if not found:
        raise UserError(
            f"{setting} = '{path}' matches no file; put one there, or correct the pattern"
        )
    return found


def _in_folder(path: str, setting: str) -> list[str]:
    """Return the files of rows that a folder holds, shards of one table."""
    found = _shards(f"{path}/*", setting)
    is_local = "://" not in path
    if is_local and (below := _shards(f"{path}/*/**/*", setting)):
        why = f"there are rows in folders below it, such as {PurePath(below[0]).parent}"
    elif not found:
        why = f"it holds no file of {', '.join(SHARDS)}"
    elif len(formats := {format_of(file)[0] for file in found}) > 1:
        why = f"it holds files of several formats, {', '.join(sorted(formats))}"
    elif len(splits := {_split_named(file) for file in found}) > 1:
        named = ", ".join(sorted(split for split in splits if split))
        why = f"it holds files of several splits, {named} and others"
    else:
        return found
    raise UserError(
        f"{setting} = '{path}' is a folder; give one of its files, or a pattern such as"
        f" {path}/train-*.parquet, since {why}"
    )


def _shards(pattern: str, setting: str) -> list[str]:
    listed = _listed(pattern, setting) if "://" in pattern else _globbed(pattern)
    names = [(PurePath(file).name, file) for file in listed]
    hidden = ("_", ".")  # of Spark and Dask
    return [f for name, f in names if format_of(f)[0] in SHARDS and not name.startswith(hidden)]


def _split_named(file: str) -> str:
    """Return the split that the name of a file calls, "" for none."""
    found = _SPLIT.search(PurePath(file).name.lower())
    return "" if found is None else {"val": "valid"}.get(found[1], found[1])


def _globbed(path: str) -> list[str]:
    found = glob.glob(str(Path(path).expanduser()), recursive=True)
    return sorted(file for file in found if Path(file).is_file())


def _listed(path: str, setting: str) -> list[str]:
    try:
        fs, pattern = fsspec.url_to_fs(path)
        fs.invalidate_cache()
        found = fs.glob(pattern, detail=True)
    except (OSError, ImportError, ValueError) as error:  # storage that is not ours: name the path
        raise UserError(f"{setting} = '{path}' cannot be listed: {error}") from error
    files = [name for name, about in found.items() if about["type"] == "file"]
    return sorted(fs.unstrip_protocol(name) for name in files)

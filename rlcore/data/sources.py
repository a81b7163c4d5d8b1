"""Sources -> raw rows: files (local or any fsspec URL), the hub, GSM8K, MATH, AIME."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.data.globs import matched_files
from rlcore.data.rows import RawTable
from rlcore.models.files import hub_unreachable
from schemas.data import (
    MATH_HUB,
    AimeSource,
    FileSource,
    Gsm8kSource,
    HubSource,
    MathSource,
    ReadSource,
)
from schemas.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset

GSM8K = "openai/gsm8k"
GSM8K_SPLITS = ("train", "test")
MATH_SPLITS = ("train", "test")
SUFFIXES = (".parquet", ".jsonl", ".json")
# Tables of text -> how polars reads them.
_CONVERTED = {".csv": "read_csv({!r})", ".tsv": "read_csv({!r}, separator='\\t')"}


def read_source(source: ReadSource, where: str = "data.sources") -> list[RawTable]:
    """Return the tables of one source, at most ``source.limit`` rows each.

    ``where``: its dotted path, shown in errors. Raises ``UserError`` naming the file (and line)
    that is missing, unreadable or not of a known kind, or the hub dataset that cannot be loaded,
    with the remedy.
    """
    match source:
        case Gsm8kSource():
            return _read_gsm8k(source, where)
        case MathSource():
            return _read_math(source, where)
        case AimeSource():
            return [_read_aime(source, where)]
        case FileSource() | HubSource():
            opened = open_source(source, where)
            return [replace(table, rows=list(read())) for table, read in opened]


def open_source(
    source: ReadSource, where: str = "data.sources"
) -> Iterator[tuple[RawTable, Callable[[], Iterable[dict[str, Any]]]]]:
    """Yield each table of a source without its rows, and what reads those, anew each time.

    Files of the user's own and of the hub are read as their rows are asked for. ``where`` and
    errors: as in ``read_source``.
    """
    match source:
        case FileSource():
            setting, name, columns = f"{where}.path", source.data_source, source.columns.named
            for file in matched_files(source.path, setting):
                table = RawTable(file, source.split, [], data_source=name, columns=columns)
                yield table, partial(_file_rows, file, source.limit, setting)
        case HubSource():
            name, label = source.data_source or source.name, f"{source.name}:{source.hub_split}"
            columns = source.columns.named
            rows = _read_hub(
                source.name,
                source.config,
                source.hub_split,
                source,
                source.revision,
                limit=source.limit,
            )
            table = RawTable(label, source.split, [], data_source=name, columns=columns)
            yield table, partial(_dicts, rows)
        case _:
            for table in read_source(source, where):
                yield replace(table, rows=[]), partial(_dicts, table.rows)


def source_files(source: ReadSource, where: str = "data.sources") -> list[str]:
    """Return the files that ``read_source`` makes a table each of, in order; none for the hub.

    ``where``: as there. Raises ``UserError`` for a folder without the files of MATH, and for a
    pattern that matches no file.
    """
    match source:
        case FileSource():
            return matched_files(source.path, f"{where}.path")
        case MathSource():
            return list(_math_files(source, where).values())
        case AimeSource():
            return [source.path] if source.path else []
        case HubSource():
            return []
    directory = _gsm8k_directory(source)
    return [f"{directory}/{split}.jsonl" for split in GSM8K_SPLITS] if directory else []


def _gsm8k_directory(source: Gsm8kSource) -> str | None:
    directory = source.path or os.environ.get("GSM8K_DIR")
    return directory.rstrip("/") if directory else None


def read_file(path: str, limit: int | None = None, *, setting: str) -> list[dict[str, Any]]:
    """Return the rows of a .parquet, .jsonl or .json file; ``setting`` is named in errors.

    Raises ``UserError`` for a missing or unreadable file, an unknown ending, an invalid Parquet
    file, or a line (counted from 1) that is not a JSON object.
    """
    return list(_file_rows(path, limit, setting))


def _file_rows(path: str, limit: int | None, setting: str) -> Iterator[dict[str, Any]]:
    suffix = _suffix(path, setting)
    with _opened(path, setting) as file:
        rows = {".parquet": _parquet, ".jsonl": _jsonl, ".json": _json}[suffix](file, path)
        yield from islice(rows, limit)


def count_rows(path: str, *, setting: str) -> int | None:
    """Return the number of rows that ``read_file`` would return of the whole file; None for a
    remote file that would have to be fetched for it.

    A line of JSONL is counted unparsed. Raises ``UserError`` as ``read_file`` does.
    """
    import pyarrow.parquet as pq

    suffix = _suffix(path, setting)
    if suffix != ".parquet" and "://" in path:
        return None
    with _opened(path, setting) as file:
        if suffix == ".parquet":
            return pq.ParquetFile(file).metadata.num_rows
        lines = _json(file, path) if suffix == ".json" else (line for line in file if line.strip())
        return sum(1 for _ in lines)


def _suffix(path: str, setting: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix in SUFFIXES:
        return suffix
    if "://" not in path and Path(path).expanduser().is_dir():
        raise UserError(f"{setting} = '{path}' is a folder; give one of its files")
    remedy = f"give a file of {', '.join(SUFFIXES)}"
    if suffix in _CONVERTED:
        target = str(Path(path).with_suffix(".parquet"))
        read = _CONVERTED[suffix].format(path)
        command = f"import polars as pl; pl.{read}.write_parquet({target!r})"
        remedy = f'convert it: `python -c "{command}"`'
    raise UserError(
        f"{setting} = '{path}' ends in '{suffix}', and {', '.join(SUFFIXES)} are read; {remedy}"
    )


@contextmanager
def _opened(path: str, setting: str) -> Iterator[Any]:
    """Open a file of any storage; whatever fails while it is read names the file."""
    import fsspec

    try:
        with fsspec.open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise UserError(
            f"{setting} = '{path}' does not exist; give an existing file{_near(path)}"
        ) from None
    except UserError as error:
        raise UserError(f"{setting}: {error}") from error.__cause__
    except Exception as error:  # of any storage's library: name the file
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(
            f"{setting} = '{path}' cannot be read ({what}); give a file that this process can open"
        ) from error


def _near(path: str) -> str:
    folder = Path(path).parent
    if "://" in path or not folder.is_dir():
        return ""
    return did_you_mean(Path(path).name, [entry.name for entry in folder.iterdir()])


def _parquet(file: Any, path: str) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
        for batch in table.iter_batches(batch_size=1024):  # whole nested columns do not convert
            yield from batch.to_pylist()
    except pa.ArrowInvalid as error:
        raise UserError(
            f"{path} is not a readable Parquet file ({str(error).partition('.')[0]}); write it"
            " again"
        ) from error


def _jsonl(file: Any, path: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield _object(line, f"{path} line {number}")


def _json(file: Any, path: str) -> Iterator[dict[str, Any]]:
    try:
        rows = json.load(file)
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); fix it") from error
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
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where} is not JSON ({error}); fix or remove that line") from error
    if not isinstance(row, dict):
        raise UserError(f"{where} is not a JSON object; fix or remove that line")
    return row


def _read_gsm8k(source: Gsm8kSource, where: str) -> list[RawTable]:
    directory = _gsm8k_directory(source)
    tables = []
    for split in GSM8K_SPLITS:
        if directory:
            origin = f"{where}.path" if source.path else "GSM8K_DIR"
            file = f"{directory}/{split}.jsonl"
            rows = read_file(file, source.limit, setting=f"GSM8K file (of {origin})")
        else:
            rows = list(
                _dicts(_read_hub(source.hub_name, "main", split, source, limit=source.limit))
            )
        tables.append(
            RawTable(
                source=f"gsm8k/{split}.jsonl",
                split=split,
                rows=rows,
                form="gsm8k",
                data_source=GSM8K,
                instruction=source.instruction,
                demonstrations=source.demonstrations and split == "train",
            )
        )
    return tables


def _math_files(source: MathSource, where: str) -> dict[str, str]:
    """Return the file of each split; {} where they are read from the hub."""
    if source.path is None:
        return {}
    folder = Path(source.path).expanduser()
    if "://" in source.path or not folder.is_dir():
        return {source.split or "train": source.path}
    files = {}
    for split in (source.split,) if source.split else MATH_SPLITS:
        found = [f for f in sorted(folder.glob(f"{split}*")) if f.suffix.lower() in SUFFIXES]
        if len(found) != 1:
            raise UserError(
                f"{where}.path = '{source.path}' holds {len(found)} files {split}* of"
                f" {', '.join(SUFFIXES)}; give a folder with one, or the path of one file"
            )
        files[split] = str(found[0])
    return files


def _read_math(source: MathSource, where: str) -> list[RawTable]:
    files, tables = _math_files(source, where), []
    for split in files or ((source.split,) if source.split else MATH_SPLITS):
        if files:
            rows = read_file(files[split], setting=f"{where}.path")
        else:
            rows = list(_dicts(_read_hub(source.hub_name, None, split, source, source.revision)))
        chosen = list(islice(_chosen(rows, source), source.limit))
        if rows and not chosen:
            raise UserError(
                f"{where}.levels = {list(source.levels)} and types = {list(source.types)} leave"
                f" none of the {len(rows)} {split} rows; choose others"
            )
        tables.append(
            RawTable(
                source=files.get(split, f"{source.hub_name}:{split}"),
                split=split,
                rows=chosen,
                form="math",
                data_source=MATH_HUB,
                instruction=source.instruction,
                demonstrations=source.demonstrations and split == "train",
            )
        )
    return tables


def _chosen(rows: Iterable[dict[str, Any]], source: MathSource) -> Iterator[dict[str, Any]]:
    """Yield the rows of the source's levels ("Level 5") and types."""
    levels = {f"Level {level}" for level in source.levels}
    for row in rows:
        of_level = not levels or row.get("level") in levels
        if of_level and (not source.types or row.get("type") in source.types):
            yield row


def _read_aime(source: AimeSource, where: str) -> RawTable:
    if source.path:
        name, rows = source.path, read_file(source.path, source.limit, setting=f"{where}.path")
    else:
        hub, split = source.hub_name, source.hub_split
        name = f"{hub}:{split}"
        rows = _dicts(_read_hub(hub, None, split, source, source.revision, limit=source.limit))
    return RawTable(
        source=name,
        split=source.split,
        rows=[{column.lower(): value for column, value in row.items()} for row in rows],
        form="aime",
        data_source=f"aime{source.year}",  # as verl names it
        instruction=source.instruction,
        demonstrations=False,
    )


def _read_hub(
    name: str,
    config_name: str | None,
    hub_split: str,
    source: Gsm8kSource | MathSource | AimeSource | HubSource,
    revision: str | None = None,
    *,
    limit: int | None = None,
) -> "Dataset":
    """Return the rows of one split; from the local cache where the hub cannot be reached."""
    from datasets import config as settings
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import HfHubHTTPError

    unreachable = hub_unreachable()
    remedy = (
        "set data.sources.path (or GSM8K_DIR) to a directory of train.jsonl and test.jsonl"
        if isinstance(source, Gsm8kSource)
        else "set data.sources.path to a file of its rows, or download it once where the hub can be"
        " reached and set HF_HOME to that cache"
        if isinstance(source, MathSource | AimeSource)
        else "use a source of kind 'file', or download it once where the hub can be reached and set"
        " HF_HOME to that cache"
    )
    # datasets asks an unreachable hub six times, about half a minute; offline it reads its cache.
    offline = settings.HF_HUB_OFFLINE
    settings.HF_HUB_OFFLINE = offline or bool(unreachable)
    try:
        rows = load_dataset(name, config_name, split=hub_split, revision=revision)
    except (ConnectionError, DatasetNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        reason = unreachable or str(error).strip().partition("\n")[0]
        raise UserError(
            f"hub dataset '{name}' (split '{hub_split}') cannot be loaded: {reason}; {remedy}"
        ) from error
    finally:
        settings.HF_HUB_OFFLINE = offline
    number = len(rows) if limit is None else min(limit, len(rows))
    return rows.select(range(number))


def _dicts(rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
    return (dict(row) for row in rows)

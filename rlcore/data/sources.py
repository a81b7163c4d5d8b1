"""Sources -> raw rows: files (local or any fsspec URL), the hub, GSM8K, MATH, AIME."""

import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.data.formats import (
    PARQUET,
    READ,
    SUFFIXES,
    Unfolded,
    count_in,
    format_of,
    rows_in,
)
from rlcore.data.globs import matched_files
from rlcore.data.rows import RawTable
from rlcore.models.files import hub_unreachable
from rlcore.store.outside import expanded_path
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
                table = _table(file, source.split, name, columns, format_of(file)[0] == PARQUET)
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
            yield _table(label, source.split, name, columns, True), partial(_dicts, rows)
        case _:
            for table in read_source(source, where):
                yield replace(table, rows=[]), partial(_dicts, table.rows)


def source_files(source: ReadSource, where: str = "data.sources") -> list[str]:
    """Return the files that ``read_source`` makes a table each of, in order; none for the hub.

    ``where``: as there. Raises ``UserError`` for a folder without the files of MATH, for a pattern
    that matches no file, and where a folder would be read in place of the hub's dataset.
    """
    files: list[str] = []
    match source:
        case FileSource():
            files = matched_files(source.path, f"{where}.path")
        case MathSource():
            files = list(_math_files(source, where).values())
        case AimeSource():
            files = [expanded_path(source.path, f"{where}.path")] if source.path else []
        case Gsm8kSource():
            directory = _gsm8k_directory(source)
            files = [f"{directory}/{split}.jsonl" for split in GSM8K_SPLITS] if directory else []
        case HubSource():
            _check_hub_name(source.name, f"{where}.name")
    if not files and not isinstance(source, FileSource | HubSource):
        _check_hub_name(source.hub_name, where)
    return files


def _check_hub_name(name: str, where: str) -> None:
    """Refuse a dataset of the hub where a folder here has its name, which ``datasets`` reads."""
    folder = Path(name)
    if folder.is_dir() and not name.startswith(("/", ".")):
        raise UserError(
            f"{where}: the hub's dataset '{name}' cannot be read where a folder has its name,"
            f" {folder.absolute()}; rename that folder, or read it by a source of kind 'file'"
        )


def _gsm8k_directory(source: Gsm8kSource) -> str | None:
    directory = source.path or os.environ.get("GSM8K_DIR")
    return expanded_path(directory, "data.sources.path").rstrip("/") if directory else None


def _table(
    source: str, split: str, data_source: str | None, columns: dict[str, str], padded: bool
) -> RawTable:
    return RawTable(source, split, [], data_source=data_source, columns=columns, padded=padded)


def read_file(path: str, limit: int | None = None, *, setting: str) -> list[dict[str, Any]]:
    """Return the rows of a file of ``SUFFIXES``; ``setting`` is named in errors.

    Raises ``UserError`` for a missing or unreadable file, an unknown ending, an invalid Parquet
    file, or a line (counted from 1) that is not of the file's format.
    """
    return list(_file_rows(path, limit, setting))


def _file_rows(path: str, limit: int | None, setting: str) -> Iterator[dict[str, Any]]:
    path = expanded_path(path, setting)
    _check_format(path, setting)
    with _opened(path, setting) as file:
        yield from islice(rows_in(file, path), limit)


def count_rows(path: str, *, setting: str) -> int | None:
    """Return the number of rows that ``read_file`` would return of the whole file; None for a
    remote file that would have to be fetched for it.

    A line of JSONL is counted unparsed. Raises ``UserError`` as ``read_file`` does.
    """
    path = expanded_path(path, setting)
    _check_format(path, setting)
    if "://" in path and format_of(path)[0] != PARQUET:
        return None
    with _opened(path, setting) as file:
        return count_in(file, path)


def _check_format(path: str, setting: str) -> None:
    suffix, _ = format_of(path)
    if suffix in SUFFIXES:
        return
    if "://" not in path and Path(path).expanduser().is_dir():
        raise UserError(f"{setting} = '{path}' is a folder; give one of its files")
    raise UserError(
        f"{setting} = '{path}' ends in '{Path(path).suffix}', and {READ} are read; give a file of"
        " one of these"
    )


@contextmanager
def _opened(path: str, setting: str) -> Iterator[Any]:
    """Open a file of any storage; whatever fails while it is read names the file."""
    import fsspec

    try:
        compression = format_of(path)[1]
        found: Any = fsspec.open(path, "rb", compression=compression)
        with found as file:
            if compression is not None:
                size = found.fs.size(found.path) or 0
                file = io.BufferedReader(Unfolded(file, size, path), 1 << 20)
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
    path = expanded_path(source.path, f"{where}.path")
    folder = Path(path).expanduser()
    if "://" in path or not folder.is_dir():
        return {source.split or "train": path}
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

    _check_hub_name(name, "data.sources")
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
    except Exception as error:  # of whatever builder and storage: name the dataset
        reason = unreachable or str(error).strip().partition("\n")[0] or type(error).__name__
        if "scripts are no longer" in reason:
            reason = "it is made by a script, and datasets runs none"
            remedy = (
                "set its revision to 'refs/convert/parquet', where the hub keeps the rows of most"
                f" such datasets, or {remedy.partition(', or ')[0]}"
            )
        raise UserError(
            f"hub dataset '{name}' (split '{hub_split}') cannot be loaded: {reason}; {remedy}"
        ) from error
    finally:
        settings.HF_HUB_OFFLINE = offline
    number = len(rows) if limit is None else min(limit, len(rows))
    return rows.select(range(number))


def _dicts(rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
    return (dict(row) for row in rows)

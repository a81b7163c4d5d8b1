"""Sources -> raw rows: files (local or any fsspec URL), the hub, GSM8K, MATH, AIME; and the
content digests that cache keys have of them."""

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import fsspec

from rlcore.data.formats import (
    PARQUET,
    READ,
    SUFFIXES,
    Unfolded,
    count_in,
    format_of,
    matched_files,
    rows_in,
)
from rlcore.data.rows import RawTable
from rlcore.models.files import hub_unreachable
from rlcore.store.inputs import (
    Read,
    expanded_path,
    hub_read,
    read_directory_digest,
    read_file_digest,
)
from schemas.data import (
    MATH_HUB,
    AimeSource,
    DataSection,
    FileSource,
    GeneratedSource,
    Gsm8kSource,
    HubSource,
    MathSource,
    ReadSource,
)
from schemas.errors import UserError, did_you_mean
from schemas.model import ModelSection
from schemas.names import REWARD_MODEL
from schemas.recipe import Recipe
from schemas.reward_model import RewardModelSection

GSM8K = "openai/gsm8k"
SPLITS = ("train", "test")  # of GSM8K and MATH


def open_source(
    source: ReadSource, where: str = "data.sources"
) -> Iterator[tuple[RawTable, Callable[[], Iterator[dict[str, Any]]]]]:
    """Yield each table of a source without its rows, and what reads those, again each time, as they
    are asked for, at most ``source.limit`` rows each.

    ``where``: its dotted path, shown in errors. Raises ``UserError`` naming the file (and line)
    that is missing, unreadable or not of a known kind, or the hub dataset that cannot be loaded,
    with the remedy.
    """
    for split, file in _places(source, where):
        yield _table(source, split, file), partial(_rows, source, split, file, where)


def source_files(source: ReadSource, where: str = "data.sources") -> list[str]:
    """Return the files of the tables of ``open_source``, in order; none for the hub.

    ``where``: as there. Raises ``UserError`` for a folder without the files of MATH, for a pattern
    that matches no file, and where a folder would be read in place of the hub's dataset.
    """
    return [file for _, file in _places(source, where) if file is not None]


def hub_dataset(source: ReadSource) -> tuple[str, str | None]:
    """Return the name of the hub's dataset that ``source`` means where it names no file, and
    its pinned revision."""
    assert not isinstance(source, FileSource), "has files"
    name = source.name if isinstance(source, HubSource) else source.hub_name
    return name, None if isinstance(source, Gsm8kSource) else source.revision


def _places(source: ReadSource, where: str) -> list[tuple[str, str | None]]:
    """Return the split of each table of a source, and its file; None: it is of the hub."""
    setting = f"{where}.path"
    match source:
        case FileSource():
            return [(source.split, file) for file in matched_files(source.path, setting)]
        case MathSource() if source.path:
            return _math_files(source, where)
        case AimeSource() if source.path:
            return [(source.split, expanded_path(source.path, setting))]
        case Gsm8kSource() if directory := source.path or os.environ.get("GSM8K_DIR"):
            directory = expanded_path(directory, setting).rstrip("/")
            return [(split, f"{directory}/{split}.jsonl") for split in SPLITS]
    is_hub = isinstance(source, HubSource)
    _check_hub_name(hub_dataset(source)[0], f"{where}.name" if is_hub else where)
    only = None if isinstance(source, Gsm8kSource) else source.split
    return [(split, None) for split in ((only,) if only else SPLITS)]


def _check_hub_name(name: str, where: str) -> None:
    """Refuse a dataset of the hub where a folder here has its name, which ``datasets`` reads."""
    folder = Path(name)
    if folder.is_dir() and not name.startswith(("/", ".")):
        raise UserError(
            f"{where}: the hub's dataset '{name}' cannot be read where a folder has its name,"
            f" {folder.absolute()}; rename that folder, or read it by a source of kind 'file'"
        )


def _math_files(source: MathSource, where: str) -> list[tuple[str, str | None]]:
    path = expanded_path(source.path or "", f"{where}.path")
    folder = Path(path).expanduser()
    if "://" in path or not folder.is_dir():
        return [(source.split or "train", path)]
    files: list[tuple[str, str | None]] = []
    for split in (source.split,) if source.split else SPLITS:
        found = [f for f in sorted(folder.glob(f"{split}*")) if f.suffix.lower() in SUFFIXES]
        if len(found) != 1:
            raise UserError(
                f"{where}.path = '{source.path}' holds {len(found)} files {split}* of"
                f" {', '.join(SUFFIXES)}; give a folder with one, or the path of one file"
            )
        files.append((split, str(found[0])))
    return files


def _table(source: ReadSource, split: str, file: str | None) -> RawTable:
    """Return the table of ``split`` of a source, without rows."""
    label = file or f"{hub_dataset(source)[0]}:{_hub_split(source, split)}"
    match source:
        case FileSource() | HubSource():
            return RawTable(
                label,
                split,
                [],
                data_source=source.data_source,
                fallback=_shared_name(source, file),
                columns=source.columns.named,
                padded=file is None or format_of(file)[0] == PARQUET,
            )
        case Gsm8kSource():
            label, name, solved = f"gsm8k/{split}.jsonl", GSM8K, source.demonstrations
        case MathSource():
            name, solved = MATH_HUB, source.demonstrations
        case AimeSource():
            name, solved = f"aime{source.year}", False  # as verl names it
    return RawTable(
        label,
        split,
        [],
        form=source.kind,
        data_source=name,
        instruction=source.instruction,
        demonstrations=solved and split == "train",
    )


def _shared_name(source: FileSource | HubSource, file: str | None) -> str | None:
    """Return the hub's name, or what keys hold of a folder or pattern; None for a single file."""
    if isinstance(source, HubSource):
        return source.name
    path = expanded_path(source.path, "data.sources.path")
    return None if path == file else re.split(r"[-_.]*[*?[]", PurePath(path).name)[0] or "rows"


def _rows(source: ReadSource, split: str, file: str | None, where: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table that the source asks for."""
    setting = f"{where}.path"
    if isinstance(source, Gsm8kSource):
        setting = f"GSM8K file (of {setting if source.path else 'GSM8K_DIR'})"
    rows = _hub_rows(source, split) if file is None else _file_rows(file, setting)
    if isinstance(source, MathSource):
        rows = _chosen(rows, source, split, where)
    if isinstance(source, AimeSource):
        rows = ({column.lower(): value for column, value in row.items()} for row in rows)
    return islice(rows, source.limit)


def read_file(path: str, limit: int | None = None, *, setting: str) -> list[dict[str, Any]]:
    """Return the rows of a file of ``SUFFIXES``; ``setting`` is named in errors.

    Raises ``UserError`` for a missing or unreadable file, an unknown ending, an invalid Parquet
    file, or a line (counted from 1) that is not of the file's format.
    """
    return list(islice(_file_rows(path, setting), limit))


def _file_rows(path: str, setting: str) -> Iterator[dict[str, Any]]:
    path = _known(path, setting)
    with _opened(path, setting) as file:
        yield from rows_in(file, path)


def count_rows(path: str, *, setting: str) -> int | None:
    """Return the number of rows that ``read_file`` would return of the whole file; None for a
    remote file that would have to be fetched for it.

    A line of JSONL is counted unparsed. Raises ``UserError`` as ``read_file`` does.
    """
    path = _known(path, setting)
    if "://" in path and format_of(path)[0] != PARQUET:
        return None
    with _opened(path, setting) as file:
        return count_in(file, path)


def _known(path: str, setting: str) -> str:
    """Return ``path`` expanded, where it is of a format that is read."""
    path = expanded_path(path, setting)
    if format_of(path)[0] in SUFFIXES:
        return path
    if "://" not in path and Path(path).expanduser().is_dir():
        raise UserError(f"{setting} = '{path}' is a folder; give one of its files")
    raise UserError(
        f"{setting} = '{path}' ends in '{Path(path).suffix}', and {READ} are read; give a file of"
        " one of these"
    )


@contextmanager
def _opened(path: str, setting: str) -> Iterator[Any]:
    """Open a file of any storage; whatever fails while it is read names the file."""
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


def _chosen(
    rows: Iterable[dict[str, Any]], source: MathSource, split: str, where: str
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the source's levels ("Level 5") and types."""
    levels = {f"Level {level}" for level in source.levels}
    number, found = 0, False
    for row in rows:
        number += 1
        of_level = not levels or row.get("level") in levels
        if of_level and (not source.types or row.get("type") in source.types):
            found = True
            yield row
    if number and not found:
        raise UserError(
            f"{where}.levels = {list(source.levels)} and types = {list(source.types)} leave"
            f" none of the {number} {split} rows; choose others"
        )


def _hub_split(source: ReadSource, split: str) -> str:
    """Return what the hub calls ``split`` of a source."""
    return source.hub_split if isinstance(source, AimeSource | HubSource) else split


def _hub_rows(source: ReadSource, split: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of one split; from the local cache where the hub cannot be reached."""
    from datasets import config as settings
    from datasets import load_dataset

    (name, revision), hub_split = hub_dataset(source), _hub_split(source, split)
    config = "main" if isinstance(source, Gsm8kSource) else None
    config = source.config if isinstance(source, HubSource) else config
    unreachable = hub_unreachable()
    remedy = "set data.sources.path to a file of its rows"
    if isinstance(source, HubSource):
        remedy = "use a source of kind 'file'"
    remedy += ", or download it once where the hub can be reached and set HF_HOME to that cache"
    if isinstance(source, Gsm8kSource):
        remedy = "set data.sources.path (or GSM8K_DIR) to a directory of train.jsonl and test.jsonl"
    # datasets asks an unreachable hub six times, about half a minute; offline it reads its cache.
    offline = settings.HF_HUB_OFFLINE
    settings.HF_HUB_OFFLINE = offline or bool(unreachable)
    try:
        rows = load_dataset(name, config, split=hub_split, revision=revision)
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
    yield from map(dict, rows)


def data_digests(data: DataSection) -> dict[str, Read]:
    """Return a digest per file or hub dataset, by its role (``data.sources[0] train.jsonl``).

    Files (local or fsspec) count by sha256, hub datasets by name and revision: an unpinned name
    counts as unchanged. A pattern or a folder has a digest per file that it has now. Raises
    ``UserError`` for a file that does not exist or cannot be read.
    """
    digests: dict[str, Read] = {}
    for index, source in enumerate(data.sources):
        role = f"data.sources[{index}]"
        if isinstance(source, GeneratedSource):
            continue
        files = source_files(source, role)
        if not files:
            digests[role] = hub_read(*hub_dataset(source), "dataset")
            continue
        setting = f"{role}.path"
        if isinstance(source, Gsm8kSource):
            setting = f"{setting if source.path else 'GSM8K_DIR'}: the GSM8K file"
        for number, file in enumerate(files):
            name = f"{role} {PurePath(file).name}"
            if isinstance(source, FileSource):  # by position, as they are read by name
                is_one = files == [expanded_path(source.path, setting)]
                name = role if is_one else f"{role}[{number}]"
            digests[name] = read_file_digest(file, setting)
    return digests


def check_unchanged(data: DataSection, reads: Mapping[str, str]) -> None:
    """Raise UserError where the sources are no longer what ``reads``, by role, says: the rows that
    were read meanwhile are not those that a key names."""
    now = data_digests(data)
    before = {role: read for role, read in reads.items() if role.startswith("data.sources[")}
    changed = [role for role in {**before, **now} if before.get(role) != now.get(role)]
    if changed:
        raise UserError(
            f"{changed[0]} changed while it was read (a file was added, written or removed); run"
            " again once it is whole, and write new files under another name first"
        )


def reward_model_digests(recipe: Recipe) -> dict[str, Read]:
    """Return the digest of each reward model that users bring, by its function, as
    ``model_digests``; one that is served counts by its version, in the recipe's part."""
    found: dict[str, Read] = {}
    for name, model in recipe.reward_models.items():
        where = f"reward_models.{name}.path"
        found |= _model_read(model.path, model.revision, f"{REWARD_MODEL}:{name}", where)
    return found


def reward_base_digests(section: RewardModelSection) -> dict[str, Read]:
    """Return the digest of ``reward_model.base``, if there is one, by role: ``model_digests``."""
    role = f"{REWARD_MODEL}.base"
    return _model_read(section.base, section.base_revision, role, role)


def model_digests(model: ModelSection) -> dict[str, Read]:
    """Return the digest of the model that ``model.path`` names, by its role ``model``; else {}.

    A local directory counts by the names and sha256 of its files, a hub name as in
    ``data_digests``. Raises ``UserError`` for a file that cannot be read.
    """
    return _model_read(model.path, model.revision, "model", "model.path")


def _model_read(path: str | None, revision: str | None, role: str, where: str) -> dict[str, Read]:
    if path is None:
        return {}
    local = Path(path).expanduser()
    if local.is_dir():
        return {role: read_directory_digest(local, where)}
    return {role: hub_read(path, revision, "model")}

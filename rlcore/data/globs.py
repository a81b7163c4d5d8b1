"""The files behind a path of a recipe: one, those of a folder, or those that a pattern matches
now."""

import glob
import re
from pathlib import Path, PurePath

import fsspec

from rlcore.data.formats import SHARDS, format_of
from rlcore.store.outside import expanded_path
from schemas.errors import UserError

# What names of files call a split; of one folder all rows are of one.
_SPLIT = re.compile(r"(?<![a-z])(train|test|valid|val|dev|eval)(?:ing|idation|uation)?(?![a-z])")


def is_pattern(path: str) -> bool:
    """Return whether ``path`` has wildcards: ``*``, ``?``, ``[...]``; ``**`` for folders at any
    depth. In a URL ``?`` begins its query; a local file of that very name is no pattern.

    >>> is_pattern("rows/*.jsonl"), is_pattern("https://host/rows.jsonl?version=2")
    (True, False)
    """
    signs = "*[" if "://" in path else "*?["
    return any(sign in path for sign in signs) and not _is_local_file(path)


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


def _is_local_file(path: str) -> bool:
    return "://" not in path and Path(path).expanduser().is_file()

"""The files behind a path of a recipe: one, or those that a pattern matches now."""

import glob
from pathlib import Path

from schemas.errors import UserError


def is_pattern(path: str) -> bool:
    """Return whether ``path`` has wildcards: ``*``, ``?``, ``[...]``; ``**`` for folders at any
    depth. In a URL ``?`` begins its query; a local file of that very name is no pattern.

    >>> is_pattern("rows/*.jsonl"), is_pattern("https://host/rows.jsonl?version=2")
    (True, False)
    """
    signs = "*[" if "://" in path else "*?["
    return any(sign in path for sign in signs) and not _is_local_file(path)


def matched_files(path: str, setting: str) -> list[str]:
    """Return the files that ``path`` names, sorted by name; a path that is no pattern as it is.

    ``setting`` is named in errors. Raises UserError where a pattern matches no file, or the storage
    cannot be listed.
    """
    if not is_pattern(path):
        return [path]
    found = _listed(path, setting) if "://" in path else _globbed(path)
    if not found:
        raise UserError(
            f"{setting} = '{path}' matches no file; put one there, or correct the pattern"
        )
    return found


def _globbed(path: str) -> list[str]:
    found = glob.glob(str(Path(path).expanduser()), recursive=True)
    return sorted(file for file in found if Path(file).is_file())


def _listed(path: str, setting: str) -> list[str]:
    import fsspec

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

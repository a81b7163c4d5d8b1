"""Content digests of what a run reads from outside the store: their part of the cache keys."""

import hashlib
import os
from pathlib import Path, PurePath

from rlcore.data.sources import source_files
from schemas.data import (
    AimeSource,
    ArithmeticSource,
    DataSection,
    FileSource,
    HubSource,
    MathSource,
    ProgramsSource,
)
from schemas.errors import UserError
from schemas.recipe import ModelSection

CHUNK_BYTES = 1 << 22


def data_digests(data: DataSection) -> dict[str, str]:
    """Return a digest per file or hub dataset, by its role (``data.sources[0] train.jsonl``).

    Files (local or fsspec) count by sha256, hub datasets by name and revision: an unpinned name
    counts as unchanged. Raises ``UserError`` for a file that does not exist or cannot be read.
    """
    digests: dict[str, str] = {}
    for index, source in enumerate(data.sources):
        role = f"data.sources[{index}]"
        match source:
            case ArithmeticSource() | ProgramsSource():
                continue
            case FileSource():
                digests[role] = file_digest(source.path, f"{role}.path")
            case HubSource():
                digests[role] = _hub(source.name, source.revision)
            case MathSource() | AimeSource():
                files = source_files(source, role)
                for file in files:
                    digests[f"{role} {PurePath(file).name}"] = file_digest(file, f"{role}.path")
                if not files:
                    digests[role] = _hub(source.hub_name, source.revision)
            case _:
                directory = source.path or os.environ.get("GSM8K_DIR")
                if directory is None:
                    digests[role] = _hub(source.hub_name, None)
                    continue
                setting = f"{role}.path" if source.path else "GSM8K_DIR"
                for name in ("train.jsonl", "test.jsonl"):
                    path = f"{directory.rstrip('/')}/{name}"
                    digests[f"{role} {name}"] = file_digest(path, f"{setting}: the GSM8K file")
    return digests


def model_digests(model: ModelSection) -> dict[str, str]:
    """Return the digest of the model that ``model.path`` names, by its role ``model``; else {}.

    A local directory counts by the names and sha256 of its files, a hub name as in
    ``data_digests``. Raises ``UserError`` for a file that cannot be read.
    """
    if model.path is None:
        return {}
    local = Path(model.path).expanduser()
    if local.is_dir():
        return {"model": _directory_digest(local)}
    return {"model": _hub(model.path, model.revision)}


def _hub(name: str, revision: str | None) -> str:
    return f"hub:{name}@{revision or 'unpinned'}"


def file_digest(path: str, setting: str) -> str:
    import fsspec

    digest = hashlib.sha256()
    try:
        with fsspec.open(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):  # pyright: ignore[reportAttributeAccessIssue]
                digest.update(chunk)
    except FileNotFoundError:
        raise UserError(f"{setting} = '{path}' does not exist; give an existing file") from None
    except (OSError, ImportError, ValueError) as error:  # storage that is not ours: name the file
        raise UserError(f"{setting} = '{path}' cannot be read: {error}") from error
    return f"sha256:{digest.hexdigest()}"


def _directory_digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path for path in directory.iterdir() if path.is_file()):
        digest.update(f"{file.name} {file_digest(str(file), 'model.path')}\n".encode())
    return f"sha256:{digest.hexdigest()}"

"""Content digests of what preparation reads from outside the store: its part of the cache key."""

import hashlib
import os
from pathlib import Path

from schemas.data import ArithmeticSource, DataSection, FileSource, HubSource
from schemas.errors import UserError
from schemas.recipe import ModelSection

CHUNK_BYTES = 1 << 22


def input_digests(data: DataSection, model: ModelSection) -> dict[str, str]:
    """Return a digest per outside input, by its role (``data.sources[0] train.jsonl``, ``model``).

    Files (local or fsspec) count by sha256, a local model directory by the names and sha256 of its
    files, hub things by name and revision: an unpinned hub name counts as unchanged. Raises
    ``UserError`` for a file that does not exist or cannot be read.
    """
    digests: dict[str, str] = {}
    for index, source in enumerate(data.sources):
        role = f"data.sources[{index}]"
        match source:
            case ArithmeticSource():
                continue
            case FileSource():
                digests[role] = file_digest(source.path, f"{role}.path")
            case HubSource():
                digests[role] = _hub(source.name, source.revision)
            case _:
                directory = source.path or os.environ.get("GSM8K_DIR")
                if directory is None:
                    digests[role] = _hub(source.hub_name, None)
                    continue
                setting = f"{role}.path" if source.path else "GSM8K_DIR"
                for name in ("train.jsonl", "test.jsonl"):
                    path = f"{directory.rstrip('/')}/{name}"
                    digests[f"{role} {name}"] = file_digest(path, f"{setting}: the GSM8K file")
    if model.path is not None:
        local = Path(model.path).expanduser()
        digests["model"] = (
            _directory_digest(local) if local.is_dir() else _hub(model.path, model.revision)
        )
    return digests


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

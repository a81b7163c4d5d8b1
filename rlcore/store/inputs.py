"""What a run reads from outside the store: its content digests, and where it was read.

The digest alone counts in cache keys: a renamed file, or a hub commit with equal rows, must not
make stages run again.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from schemas.errors import UserError

CHUNK_BYTES = 1 << 22
UNPINNED = "unpinned"
_SHA256 = "sha256:"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")


class Found(NamedTuple):
    """One file or hub repository: where it was read, and its sha256 (hex) or commit."""

    url: str
    digest: str


class Read(str):
    """A content digest, as it counts in cache keys, that knows what it was taken from."""

    __slots__ = ("_files",)
    _files: Callable[[], Sequence[Found]]

    def __new__(cls, digest: str, files: Callable[[], Sequence[Found]]) -> "Read":
        """``files`` returns the files that ``digest`` is of, once they were read."""
        read = super().__new__(cls, digest)
        read._files = files
        return read

    def files(self) -> Sequence[Found]:
        """Return what was read."""
        return self._files()


def hub_read(name: str, revision: str | None, repo_type: str) -> Read:
    """Return name and revision of a repository of the hub; an unpinned one counts as unchanged.

    ``repo_type``: model or dataset. What was read is the commit that the cache then holds.
    """

    def files() -> list[Found]:
        commit = cached_commit(name, revision, repo_type) or revision or UNPINNED
        return [Found(f"hf://{repo_type}s/{name}", commit)]

    return Read(f"hub:{name}@{revision or UNPINNED}", files)


def cached_commit(name: str, revision: str | None, repo_type: str) -> str | None:
    """Return the commit that the hub library's cache holds for a revision (None: the newest);
    None where it holds no repository of that name, or several commits and no such revision."""
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=repo_type)
    ref = folder / "refs" / (revision or "main")
    if ref.is_file():
        return ref.read_text(encoding="utf-8").strip()
    snapshots = [path.name for path in folder.glob("snapshots/*")]
    return snapshots[0] if len(snapshots) == 1 and revision is None else None


def expanded_path(path: str, setting: str) -> str:
    """Return ``path`` with the values of environment variables: ``$NAME``, ``${NAME}``.

    A file of that very name stays as it is. Raises ``UserError`` for a variable that is not set.
    """
    if "$" not in path or ("://" not in path and Path(path).expanduser().exists()):
        return path
    expanded = os.path.expandvars(path)
    if unset := _VARIABLE.search(expanded):
        raise UserError(
            f"{setting} = '{path}' names the environment variable {unset[1] or unset[2]}, which is"
            " not set here; set it, or write the path"
        )
    return expanded


def read_file_digest(path: str, setting: str) -> Read:
    """Return the sha256 of a file of any storage; ``setting`` is named in errors.

    Raises ``UserError`` for a file that does not exist or cannot be read.
    """
    import fsspec

    path = expanded_path(path, setting)
    digest = hashlib.sha256()
    try:
        with fsspec.open(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):  # pyright: ignore[reportAttributeAccessIssue]
                digest.update(chunk)
    except FileNotFoundError:
        raise UserError(f"{setting} = '{path}' does not exist; give an existing file") from None
    except (OSError, ImportError, ValueError) as error:  # storage that is not ours: name the file
        raise UserError(f"{setting} = '{path}' cannot be read: {error}") from error
    url = path if "://" in path else str(Path(path).expanduser().absolute())
    found = Found(url, digest.hexdigest())
    return Read(f"{_SHA256}{found.digest}", lambda: [found])


def read_directory_digest(directory: Path, setting: str) -> Read:
    """Return the sha256 over the names and contents of the files of a directory."""
    digest, files = hashlib.sha256(), list[Found]()
    for file in sorted(path for path in directory.iterdir() if path.is_file()):
        read = read_file_digest(str(file), setting)
        digest.update(f"{file.name} {read}\n".encode())
        files += read.files()
    return Read(f"{_SHA256}{digest.hexdigest()}", lambda: files)


def files_read(reads: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return source, url and digest of the files that the digests ``reads``, by role, are of."""
    return [
        (source, found.url, found.digest)
        for source, read in reads.items()
        if isinstance(read, Read)
        for found in read.files()
    ]

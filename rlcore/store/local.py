"""Artifacts in a local directory: one appears atomically, by renaming a finished directory."""

import errno
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from rlcore.store.checks import MANIFEST, ArtifactError, remember_digest
from rlcore.store.file_stamps import is_abandoned, stamp
from rlcore.store.limits import read_bytes
from rlcore.store.records import LocalRecords, flush
from schemas.artifacts import Manifest
from schemas.errors import UserError

_STAGING = ".staging"
LARGEST_MANIFEST = 256 << 20  # bytes; one of a hundred thousand files has 20 MB
STALE_S = 24 * 3600


@dataclass(frozen=True)
class LocalFiles:
    """Files of the artifacts below ``root``; a location is ``<kind>/<key>``."""

    root: Path

    def uri(self, location: str) -> str:
        """Return the absolute path of an artifact's directory."""
        return str(self.root / location)

    def read_manifest(self, location: str) -> bytes | None:
        """Return the bytes of the manifest, or None where there is none; no bytes of what no writer
        of ours left there, as a pipe."""
        try:
            return read_bytes(self.root / location / MANIFEST, at_most=LARGEST_MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (UserError, IsADirectoryError):
            return b""

    def read_manifests(self, locations: list[str]) -> list[bytes | None]:
        """Return the manifests in the order asked; None for one that is gone."""
        return [self.read_manifest(location) for location in locations]

    def stamps(self) -> dict[str, str]:
        """Return location -> ``stamp`` of the manifest of every complete artifact."""
        found: dict[str, str] = {}
        for kind in self.kinds():
            _stamps(str(self.root / kind), kind, found)
        return found

    def local_path(self, location: str, name: str, content: str) -> str:
        """Return the path of one file of an artifact, whether there is one or not."""
        return f"{self.root}/{location}/{name}"

    def index_folder(self) -> Path:
        """Return the folder of what readers remember; no kind, since its name begins with a dot."""
        return self.root / ".index"

    def listing(self, location: str) -> dict[str, int]:
        """Return path -> bytes of all but the manifest; -1 for anything but a regular file."""
        top = self.root / location
        return dict(_walk(top, "")) if top.is_dir() else {}

    def fetch(self, location: str, name: str, manifest: Manifest) -> Path:
        """Return the path of one file of an artifact."""
        return self.root / location / name

    def fetch_all(self, location: str, manifest: Manifest) -> Path:
        """Return the path of an artifact's directory."""
        return self.root / location

    def locations(self, kind: str, prefix: str) -> Iterator[str]:
        """Yield the keys of ``kind`` that start with ``prefix`` and have a manifest, unsorted."""
        top = self.root / kind
        # Only the directory part of the prefix narrows the walk: the last part may be incomplete.
        start = top / prefix.rpartition("/")[0]
        for folder, subfolders, files in os.walk(start):
            if MANIFEST in files:
                subfolders.clear()
                key = Path(folder).relative_to(top).as_posix()
                if key.startswith(prefix):
                    yield key

    def kinds(self) -> list[str]:
        """Return the kinds that have a directory."""
        if not self.root.is_dir():
            return []
        return sorted(
            entry.name
            for entry in os.scandir(self.root)
            if entry.is_dir() and not entry.name.startswith(".")
        )

    def records(self, folder: str) -> LocalRecords:
        """Return the documents in a folder of the store."""
        return LocalRecords(self.root / folder)

    def publish(
        self,
        location: str,
        contents: Mapping[str, bytes | Path],
        manifest: Manifest,
        fence: Callable[[], AbstractContextManager[None]],
    ) -> bool:
        """Make the artifact visible, manifest included, by one rename; False if it already exists.

        ``fence`` is entered for the rename, or raises. Then it outlives a power failure. Files
        given as paths are hard-linked where the filesystem allows, copied elsewhere. Raises
        ArtifactError when the disk is full or read-only; nothing is left then.
        """
        uri, top = self.uri(location), self.root / location
        staged = self.staging_folder()
        try:
            for name, content in contents.items():
                _write(staged / name, content)
                _refuse_short(staged / name, manifest.files[name].bytes, f"{uri}/{name}")
            _write(staged / MANIFEST, manifest.model_dump_json(indent=1).encode())
            _let_read(staged, contents)
            folders = [Path(path) for path, _, _ in os.walk(staged)]
            for part in (*(staged / name for name in (*contents, MANIFEST)), *folders):
                flush(part)
            top.parent.mkdir(parents=True, exist_ok=True)
            with fence():
                if top.exists() and self.read_manifest(location) is None:
                    shutil.rmtree(top)
                os.replace(staged, top)
            flush(top.parent)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise ArtifactError(
                f"{uri} could not be written: {os.strerror(error.errno or 0)}. Nothing was stored; "
                f"free space or fix the permissions of {self.root}, then rerun."
            ) from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        for name, entry in manifest.files.items():
            remember_digest(top / name, entry.sha256)
        return True

    def remove(self, location: str) -> None:
        """Remove an artifact: its manifest first, so that no reader sees half of it."""
        top = self.root / location
        (top / MANIFEST).unlink(missing_ok=True)
        if top.is_dir():
            flush(top)
            shutil.rmtree(top)

    def leftovers(self, kind: str) -> dict[str, int]:
        """Return location -> bytes of the highest folders of ``kind`` with no artifact below: what
        a removal that was killed left."""
        found: dict[str, int] = {}
        top = self.root / kind
        if top.is_dir():
            for entry in os.scandir(top):
                if entry.is_dir(follow_symlinks=False):
                    _leftovers(Path(entry.path), f"{kind}/{entry.name}", found)
        return found

    def staging_folder(self) -> Path:
        """Create and return a folder of this process; folders of dead processes are removed."""
        staging = self.root / _STAGING
        mine = f"{_scope()}-{os.getpid()}-{uuid4().hex[:8]}"
        try:
            staging.mkdir(parents=True, exist_ok=True)
            for entry in os.scandir(staging):
                if _is_abandoned(entry):
                    shutil.rmtree(entry.path, ignore_errors=True)
            (staging / mine).mkdir()
        except OSError as error:
            raise ArtifactError(
                f"the artifact store {self.root} cannot be written: {error.strerror}. "
                "Choose another root or fix its permissions."
            ) from error
        return staging / mine


def links_below(files: LocalFiles) -> list[str]:
    """Return the symbolic links in the places of artifacts, which no reader follows, sorted."""
    found = [
        f"{folder.removeprefix(f'{files.root}/')}/{name}"
        for kind in files.kinds()
        for folder, subfolders, inside in os.walk(files.root / kind)
        for name in subfolders
        if MANIFEST not in inside and os.path.islink(f"{folder}/{name}")
    ]
    return sorted(found)


def _walk(top: Path, prefix: str) -> Iterator[tuple[str, int]]:
    for entry in os.scandir(top):
        name = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), name + "/")
        elif name != MANIFEST:
            plain = entry.is_file(follow_symlinks=False)
            yield name, entry.stat(follow_symlinks=False).st_size if plain else -1


def _leftovers(folder: Path, location: str, found: dict[str, int]) -> bool:
    """Add the highest folders without an artifact; return whether ``folder`` holds one."""
    if (folder / MANIFEST).exists():
        return True
    inner = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    below: dict[str, int] = {}
    holds = [_leftovers(Path(entry.path), f"{location}/{entry.name}", below) for entry in inner]
    if any(holds):
        found |= below
        return True
    found[location] = sum(max(size, 0) for _, size in _walk(folder, ""))
    return False


def _stamps(folder: str, location: str, found: dict[str, str]) -> None:
    """Add those of all artifacts below ``folder``; within an artifact there is no other."""
    for entry in os.scandir(folder):
        if not entry.is_dir(follow_symlinks=False):
            continue
        inner, manifest = f"{location}/{entry.name}", f"{entry.path}/{MANIFEST}"
        known = stamp(manifest)
        if known or os.path.exists(manifest):
            found[inner] = known
        else:
            with suppress(FileNotFoundError):  # removed meanwhile
                _stamps(entry.path, inner, found)


def _write(path: Path, content: bytes | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        try:
            os.link(content, path)
        except OSError as error:
            # Another filesystem, or one without hard links: the bytes are copied instead.
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
            shutil.copyfile(content, path)


def _let_read(folder: Path, names: Iterable[str]) -> None:
    """Let everyone whom the umask lets read ``folder``'s manifest read its files ``names``.

    safetensors writes every file with mode 0600, whatever the umask (safetensors issue 782), so
    nobody else could load an export. Another user's file, hard-linked from a shared cache of the
    hub, keeps the mode that its owner gave it.
    """
    readers = (folder / MANIFEST).stat().st_mode & 0o444
    for path in (folder / name for name in names):
        status = path.stat()
        mode = stat.S_IMODE(status.st_mode)
        if readers & ~mode and status.st_uid == os.getuid():
            path.chmod(mode | readers)


def _refuse_short(path: Path, size: int, name: str) -> None:
    found = path.stat().st_size
    if found != size:
        raise ArtifactError(
            f"{name}: {found} bytes were written instead of {size}: the source changed meanwhile or"
            " the disk failed. Nothing was stored; rerun."
        )


def _scope() -> str:
    """Return in what a pid is unique: the pid namespace; containers may share the host's name."""
    namespace = Path("/proc/self/ns/pid")
    return f"{socket.gethostname()}.{namespace.stat().st_ino if namespace.exists() else 0}"


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    """Return whether a staging folder's writer is dead (of this scope) or the folder a day old (of
    another)."""
    host, _, pid = entry.name.rpartition("-")[0].rpartition("-")
    if host == _scope() and pid.isdecimal():
        return is_abandoned(Path(entry.path), int(pid))
    try:
        return time.time() - entry.stat().st_mtime > STALE_S
    except FileNotFoundError:
        return False

"""Small documents of a store that change by compare-and-set: of two concurrent writers one wins.

A local store locks a file meanwhile; S3 compares ETags (``If-Match``, ``If-None-Match``).
"""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

from rlcore.store.checks import ArtifactError

LEASES = ".leases"  # folder of the records in a store
LOCK_S = 30.0
_LOOK_S = 0.05
_LOCK = ".lock"  # what the name of a document's lock ends with
_ONE_WRITER = Lock()
# s3fs's exceptions for "precondition failed" and for "conflicting conditional request".
_PRECONDITION = (errno.EINVAL, errno.EBUSY)


@dataclass(frozen=True, slots=True)
class Record:
    """A document and the identifier of this version."""

    content: bytes
    version: str


@dataclass(frozen=True)
class LocalRecords:
    """Documents below ``folder``, by name, a plain relative path."""

    folder: Path

    def read(self, name: str) -> Record | None:
        """Return the document, or None where there is none."""
        try:
            content = (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Record(content, content.decode(errors="replace"))

    def exchange(self, name: str, found: Record | None, content: bytes) -> Record | None:
        """Write ``content`` if the document is still ``found``; return it, or None if it is not. It
        outlives a loss of power. The content is the version, so each write must have another
        one."""
        with self.guard(name):
            if self.read(name) != found:
                return None
            partial = self.folder / f".{uuid4().hex}"
            try:
                # Content, then name, then folder: a loss of power leaves the old document or the
                # new one.
                partial.write_bytes(content)
                flush(partial)
                os.replace(partial, self.folder / name)
                flush(self.folder)
            except OSError as error:
                partial.unlink(missing_ok=True)
                raise self._refused(error) from error
            return self.read(name)

    def remove(self, name: str) -> None:
        """Remove the document; does nothing where there is none."""
        with self.guard(name):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / f"{name}{_LOCK}").unlink(missing_ok=True)

    def names(self, prefix: str) -> list[str]:
        """Return the names of the documents that start with ``prefix``."""
        if not self.folder.is_dir():
            return []
        names = (entry.name for entry in os.scandir(self.folder))
        return [name for name in names if name.startswith(prefix) and not name.endswith(_LOCK)]

    def age_s(self, name: str) -> float:
        """Return the seconds since the last write, by the store's own clock: on a network drive by
        that of its server. By this machine's where the store cannot be written."""
        written, probe = (self.folder / name).stat().st_mtime, self.folder / f".{uuid4().hex}"
        try:
            probe.touch()
        except OSError:
            return time.time() - written
        try:
            return probe.stat().st_mtime - written
        finally:
            probe.unlink()

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """Hold the document's lock, so that nobody else can exchange it. Raises ArtifactError when
        it is not released in time, or the folder cannot be written."""
        path = self.folder / f"{name}{_LOCK}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise self._refused(error) from error
        try:
            looked = 0  # times, not seconds: this process may have been stopped meanwhile
            # A killed process leaves no lock: the kernel releases it with the open file.
            while not _locked(handle):
                looked += 1
                if looked * _LOOK_S > LOCK_S:
                    raise ArtifactError(
                        f"{path} has been locked for {LOCK_S:.0f} s by a process that hangs; find"
                        " it with fuser, end it, and rerun"
                    )
                time.sleep(_LOOK_S)
            yield
        finally:
            os.close(handle)

    def _refused(self, error: OSError) -> ArtifactError:
        return ArtifactError(
            f"the artifact store {self.folder.parent} cannot be written: {error.strerror}. "
            "Free space, choose another root or fix its permissions."
        )


def flush(path: Path) -> None:
    """Make the content of a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class RemoteRecords:
    """Documents below ``top`` of an fsspec filesystem.

    Only S3 supports the comparison; on others two processes that write at the same moment can both
    win. ``translate_errors`` raises a network failure as one sentence.
    """

    def __init__(
        self, fs: Any, top: str, translate_errors: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._fs, self._top, self._translate_errors = fs, top, translate_errors
        self._compares = "s3" in fs.protocol

    def read(self, name: str) -> Record | None:
        """See ``LocalRecords``."""
        with self._translate_errors(f"read {self._path(name)}"):
            try:
                # In this order, a write in between only makes an exchange fail.
                version = self._version(name)
                content = self._fs.cat_file(self._path(name))
            except FileNotFoundError:
                return None
        return Record(content, version or content.decode(errors="replace"))

    def exchange(self, name: str, found: Record | None, content: bytes) -> Record | None:
        """See ``LocalRecords``. A write that was repeated because its response was lost is
        recognised by its content, which must differ from write to write."""
        with self._translate_errors(f"write {self._path(name)}"):
            # Without a condition on the server, threads of this process at least exclude one
            # another.
            if not self._compares:
                with _ONE_WRITER:
                    if self.read(name) != found:
                        return None
                    self._fs.pipe_file(self._path(name), content)
                    return self.read(name)
            asked = {"mode": "create"} if found is None else {"IfMatch": found.version}
            try:
                self._fs.pipe_file(self._path(name), content, **asked)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno not in _PRECONDITION and not isinstance(error, FileExistsError):
                    raise
                if error.errno == errno.EINVAL and self.read(name) == found:
                    raise  # there was no other writer: the server does not support the condition
            written = self.read(name)
        return written if written is not None and written.content == content else None

    def remove(self, name: str) -> None:
        """See ``LocalRecords``."""
        with self._translate_errors(f"remove {self._path(name)}"):
            if self._fs.exists(self._path(name)):
                self._fs.rm_file(self._path(name))

    def names(self, prefix: str) -> list[str]:
        """See ``LocalRecords``."""
        with self._translate_errors(f"list {self._top}"):
            self._fs.invalidate_cache()
            paths = self._fs.glob(f"{self._top}/{prefix}*")
        return [str(path).rpartition("/")[2] for path in paths]

    def age_s(self, name: str) -> float:
        """See ``LocalRecords``."""
        probe = self._path(f"clock-{uuid4().hex}")
        with self._translate_errors(f"write {probe}"):
            self._fs.pipe_file(probe, b"now")
            self._fs.invalidate_cache()
            try:
                written = self._fs.modified(self._path(name))
                return (self._fs.modified(probe) - written).total_seconds()
            finally:
                self._fs.rm_file(probe)

    def guard(self, name: str) -> AbstractContextManager[None]:
        """Nothing: an object store has no locks."""
        del name
        return nullcontext()

    def _path(self, name: str) -> str:
        return f"{self._top}/{name}"

    def _version(self, name: str) -> str:
        if not self._compares:
            return ""
        return self._fs.info(self._path(name), refresh=True)["ETag"]


RecordStore = LocalRecords | RemoteRecords

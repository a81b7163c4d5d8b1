"""Local copies of a remote store's files, by content, bounded: the longest unused go first.

``<folder>/<digest of the artifact>/<file>``. The time of last use is that of modification of the
artifact's folder, as filesystems seldom record reading.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from uuid import uuid4

from schemas.errors import UserError

if TYPE_CHECKING:
    from schemas.artifacts import ArtifactRef

SETTING = "RL_PIPELINE_CACHE_GIB"
DEFAULT_GIB = 50.0
GIB = 2**30
RECENT_S = 900.0  # a file that was handed out may be opened within this time
ABANDONED_S = 24 * 3600
LOOK_SHARE = 1 / 50  # of the bound, that is downloaded before the folder is measured again
PARTIAL, HELD = ".partial", ".held"

# Locks of what this process handed out as folders, open until it ends: path -> file descriptor.
_HANDED_OUT: dict[Path, int] = {}
_ORIGINS: dict[Path, tuple[str, "ArtifactRef"]] = {}  # folder -> its store, its artifact
_ONE_AT_A_TIME = Lock()


def note_origin(folder: Path, store: str, ref: "ArtifactRef") -> None:
    """Remember what ``folder`` is a copy of."""
    _ORIGINS[folder] = store, ref


def origin_of(path: str) -> "tuple[str, ArtifactRef, str] | None":
    """Return of which store and artifact ``path`` lies in a copy that this process was given, and
    where in it; None for any other path."""
    for folder in (Path(path), *Path(path).parents) if path.startswith("/") else ():
        if folder in _ORIGINS:
            return (*_ORIGINS[folder], Path(path).relative_to(folder).as_posix())
    return None


def most_bytes() -> int:
    """Return the bound in bytes, from the environment. Raises UserError for what is no size."""
    text = os.environ.get(SETTING, str(DEFAULT_GIB))
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 <= size < float("inf"):
        raise UserError(
            f"{SETTING}={text} in the environment is no size; give GiB, 0 or more, e.g. 100"
        )
    return int(size * GIB)


class Cache:
    """The copies below ``folder``; ``bound``: bytes, see ``most_bytes``."""

    def __init__(self, folder: Path, bound: int) -> None:
        self.folder, self._bound = folder, bound
        self._new: int | None = None  # bytes since the folder was measured, None before

    def path(self, content: str, name: str) -> Path:
        """Return where the copy of a file is, or will be."""
        return self.folder / content / name

    def partial(self) -> Path:
        """Return a path of this process for a download."""
        return self._partial / uuid4().hex

    def use(self, content: str) -> None:
        """Say that the copies of an artifact are used now."""
        try:
            os.utime(self.folder / content)
        except FileNotFoundError:
            (self.folder / content).mkdir(parents=True, exist_ok=True)

    def hand_out(self, content: str) -> Path:
        """Return the folder of an artifact, which stays until this process has ended."""
        lock = self._lock(content)
        with _ONE_AT_A_TIME:
            if lock not in _HANDED_OUT:
                handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
                fcntl.flock(handle, fcntl.LOCK_SH)  # waits while another process removes it
                _HANDED_OUT[lock] = handle
        self.use(content)
        return self.folder / content

    def added(self, size: int) -> None:
        """Note a download of ``size`` bytes; remove copies where all are more than the bound."""
        self._new = None if self._new is None else self._new + size
        if self._new is None or self._new > self._bound * LOOK_SHARE:
            self._new = 0
            self._shrink()

    def _shrink(self) -> None:
        copies = sorted(self._copies())
        left = sum(size for _, size, _ in copies) - self._bound
        for used, size, path in copies:
            if left <= 0 or time.time() - used < RECENT_S:
                break
            if self._remove(path):
                left -= size
        for path in self._partial.iterdir():  # of downloads that were killed
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > ABANDONED_S:
                    _delete(path)

    def _copies(self) -> Iterator[tuple[float, int, Path]]:
        """Yield when the copies of each artifact were used last, their bytes, and their folder."""
        for entry in os.scandir(self.folder):
            if entry.is_dir() and not entry.name.startswith("."):
                with suppress(FileNotFoundError):  # removed meanwhile by another process
                    sizes = [f.stat().st_size for f in Path(entry.path).rglob("*") if f.is_file()]
                    yield entry.stat().st_mtime, sum(sizes), Path(entry.path)

    def _remove(self, path: Path) -> bool:
        """Remove the copies of an artifact unless a process that lives was handed them; return
        whether they are gone."""
        handle = os.open(self._lock(path.name), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            aside = self.partial()
            with suppress(FileNotFoundError):
                os.rename(path, aside)  # at once, so that nobody finds some of its files
                _delete(aside)
        except BlockingIOError:
            return False
        finally:
            os.close(handle)
        return True

    @property
    def _partial(self) -> Path:
        path = self.folder / PARTIAL
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _lock(self, content: str) -> Path:
        """Return the lock of an artifact, which it shares with one in 256."""
        folder = self.folder / HELD
        folder.mkdir(parents=True, exist_ok=True)
        return folder / content[:2]


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

"""Where sandboxes keep files, and which user each of them has at a time.

One directory per user of this machine holds the interpreter and, per slot, a scratch folder. As
root a slot is also a user id that nothing else has. A slot is locked while a program runs in it;
what a killed supervisor left in one is removed when it is locked again.
"""

import errno
import fcntl
import hashlib
import math
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rlcore.sandbox.types import SandboxError

SLOTS = 256
# Given to no user and no container by systemd's and Debian's tables; the second for containers that
# have 65,536 user ids only.
_FIRST_UID, _BLOCKS = 1_900_000_000, 400_000
_FIRST_SMALL_UID = 64_000


@dataclass(frozen=True, slots=True)
class Slot:
    """A place that one program has for itself."""

    uid: int | None  # None: that of this process
    scratch: Path


def state_directory() -> Path:
    """Return the directory of this user's sandboxes, made where it is missing.

    Raises SandboxError when it is not this user's own.
    """
    for parent in ("/var/tmp", tempfile.gettempdir()):
        path = Path(parent, f"rl-pipeline-sandbox-{os.geteuid()}")
        with suppress(OSError):
            # Users of slots pass through it, and list nothing.
            path.mkdir(mode=0o711, exist_ok=True)
            return checked(path)
    raise SandboxError("neither /var/tmp nor the temporary directory can be written")


def checked(path: Path) -> Path:
    """Return ``path`` if it is a directory that only this user can write.

    Raises SandboxError otherwise: a name in /var/tmp may have been taken by anyone.
    """
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise SandboxError(f"{path} is not a directory that only this user can write; remove it")
    path.chmod(0o711)
    (path / "locks").mkdir(mode=0o700, exist_ok=True)
    slots = path / "slots"
    slots.mkdir(exist_ok=True)
    slots.chmod(0o711)
    return path


def first_uid(directory: Path) -> int:
    """Return the user id of slot 0 of ``directory``.

    Directories of containers on one machine have different ids, as far as chance allows: the kernel
    counts the threads of an id over all of them. Raises SandboxError where this container has too
    few ids.
    """
    found = directory.stat()
    place = hashlib.sha256(f"{found.st_dev} {found.st_ino}".encode()).digest()
    block = int.from_bytes(place[:8], "big") % _BLOCKS
    ranges = Path("/proc/self/uid_map").read_text(encoding="utf-8").splitlines()
    for first in (_FIRST_UID + block * SLOTS, _FIRST_SMALL_UID):
        for start, _, length in map(str.split, ranges):
            if int(start) <= first and first + SLOTS <= int(start) + int(length):
                return first
    raise SandboxError("this container has too few user ids for those of sandboxes")


@contextmanager
def slot(directory: Path) -> Iterator[Slot]:
    """Lock a free slot below ``directory`` and make its scratch folder, empty, for the block.

    Raises SandboxError when all are in use.
    """
    as_root = os.geteuid() == 0
    for number in range(SLOTS):
        with _lock(directory, str(number)) as is_free:
            if not is_free:
                continue
            scratch = directory / "slots" / str(number)
            try:
                _remove(scratch)
                scratch.mkdir(mode=0o700)
                uid = first_uid(directory) + number if as_root else None
                if uid is not None:
                    os.chown(scratch, uid, uid)
                yield Slot(uid, scratch)
            finally:
                _remove(scratch)
            return
    raise SandboxError(f"all {SLOTS} sandboxes of this user are in use")


@contextmanager
def _lock(directory: Path, slot: str) -> Iterator[bool]:
    """Lock a slot for the block if it is free; yield whether it is."""
    with (directory / "locks" / slot).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def sweep(directory: Path) -> None:
    """Remove what killed supervisors left: files in slots that are free now, and processes.

    Processes are those of bubblewrap that wait for a parent which was killed before they asked to
    end with it; no program has begun in them.
    """
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError, ValueError, KeyError):
            lines = status.read_text(encoding="utf-8").splitlines()
            fields = dict(line.split(":", 1) for line in lines)
            if fields["Name"].strip() != "bwrap" or len(fields["NSpid"].split()) < 2:
                continue
            parent = Path("/proc", fields["PPid"].strip(), "comm").read_bytes()
            command = status.with_name("cmdline").read_bytes()
            if parent != b"bwrap\n" and f"{directory}/python-".encode() in command:
                os.kill(int(status.parent.name), signal.SIGKILL)
    for scratch in (directory / "slots").iterdir():
        with _lock(directory, scratch.name) as is_free:
            if is_free:
                _remove(scratch)


def used(directory: Path, most: int) -> tuple[float, int]:
    """Return (bytes on disk, number of entries) below ``directory``, which may be changing.

    Infinite bytes where folders are nested deeper than a path may be long. Beyond ``most`` entries
    it does not look on.
    """
    total, entries = 0, 0
    folders = [str(directory)]
    while folders and entries <= most:
        try:
            with os.scandir(folders.pop()) as found:
                for entry in found:
                    entries += 1
                    if entries > most:
                        break
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return math.inf, entries
    return total, entries


def _remove(scratch: Path) -> None:
    """Remove a scratch folder, whatever a program did to it."""
    if not scratch.exists():
        return
    with suppress(OSError, RecursionError):
        shutil.rmtree(scratch)
        return
    # Folders may have no permissions, and be nested deeper than a path may be long.
    subprocess.run(["chmod", "-R", "u+rwx", scratch], check=False, capture_output=True)
    subprocess.run(["rm", "-rf", scratch], check=True, capture_output=True)

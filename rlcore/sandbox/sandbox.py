"""A sandbox of one level: choosing the level, starting, running programs in it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG

from rlcore.sandbox.interpreter import interpreter_in
from rlcore.sandbox.levels import start_of
from rlcore.sandbox.slots import Slot, slot, state_directory, sweep, used
from rlcore.sandbox.supervise import supervise
from rlcore.sandbox.system_calls import filter_code
from rlcore.sandbox.types import Level, Limits, Ran, Status

MAX_ENTRIES = 2000  # files and folders that a program may make
_MAPPED = 8  # files without a name that it may hold in memory alone; their size cannot be seen


class Sandbox:
    """Runs programs at one level; safe to use from several threads and processes."""

    def __init__(self, level: Level, directory: Path | None = None) -> None:
        """Prepare ``level``; whether it holds is for ``rlcore.sandbox.probe`` to find out.

        ``directory``: where interpreter, locks and scratch folders are, by default the one of this
        user. Raises SandboxError where these cannot be made.
        """
        self.level = level
        self._directory = state_directory() if directory is None else directory
        self._executable = interpreter_in(self._directory)
        filter_code(may_exec=False)
        sweep(self._directory)

    def run(
        self,
        program: str,
        stdin: str | bytes = b"",
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> Ran:
        """Return how ``program``, Python source, ended, in an empty working directory.

        Raises SandboxError when the sandbox failed.
        """
        given = stdin if isinstance(stdin, bytes) else stdin.encode("utf-8", "surrogatepass")
        with self._slot() as place:
            return supervise(
                lambda links: start_of(self.level, self._executable, place, limits, links),
                program=program,
                stdin=given,
                limits=limits,
                watch=lambda pid: self._excess(pid, place, limits),
            )

    @contextmanager
    def _slot(self) -> Iterator[Slot | None]:
        if self.level is Level.NAMESPACES and os.geteuid() != 0:
            yield None  # all that a slot is for, bubblewrap has
            return
        with slot(self._directory) as place:
            yield place

    def _excess(self, pid: int, place: Slot | None, limits: Limits) -> Status | None:
        """Return which limit that the kernel does not hold a running program exceeds, if any."""
        if self.level is Level.NAMESPACES:
            return Status.FILES if _inodes(pid) > MAX_ENTRIES else None
        assert place is not None
        size, entries = used(place.scratch, MAX_ENTRIES)
        size += _unlinked(pid) + _mapped(pid) * limits.files_bytes / _MAPPED
        if size > limits.files_bytes or entries > MAX_ENTRIES:
            return Status.FILES
        return Status.THREADS if _threads(pid) > limits.threads else None


def _inodes(pid: int) -> int:
    """Return how many files the tmpfs of a namespace hold; 0 once its process has ended."""
    count = 0
    with suppress(OSError):
        for path in ("tmp", "dev/shm"):
            found = os.statvfs(f"/proc/{pid}/root/{path}")
            count += found.f_files - found.f_ffree
    return count


def _threads(pid: int) -> int:
    """Return the number of a process's threads; 0 once it has ended."""
    with suppress(OSError):
        # proc(5): after the name, which may hold anything, num_threads is the 18th field.
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[17])
    return 0


def _unlinked(pid: int) -> int:
    """Return the bytes of files that a process holds open and that have no name any more."""
    total = 0
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            found = os.stat(f"/proc/{pid}/fd/{name}")
            if S_ISREG(found.st_mode) and found.st_nlink == 0:
                total += found.st_blocks * 512
    return total


def _mapped(pid: int) -> int:
    """Return how many files a process has in its memory that have no name any more."""
    found = set()
    with suppress(OSError):
        for line in (
            Path(f"/proc/{pid}/maps").read_text(errors="replace", encoding="utf-8").splitlines()
        ):
            if line.endswith(" (deleted)"):
                device, inode = line.split()[3:5]
                if not device.startswith("00:01"):  # shared memory without a file
                    found.add((device, inode))
    return len(found)

"""The types of a sandbox: levels of confinement, limits, and how a program ended."""

from dataclasses import dataclass
from enum import StrEnum

MIB = 2**20


class Level(StrEnum):
    """How a program is confined, strongest first."""

    NAMESPACES = "namespaces"  # bubblewrap: it sees no file, process or network of the machine
    LANDLOCK = "landlock"  # as root: Landlock, and a separate user
    LANDLOCK_SHARED_UID = "landlock-shared-uid"  # as an ordinary user: Landlock, the same user
    NONE = "none"  # limits only; it can do whatever this user can


class Status(StrEnum):
    """How a program ended."""

    EXITED = "exited"  # by itself; ``Ran.exit_code`` says how
    KILLED = "killed"  # by a signal that the sandbox did not send, such as a crash
    TIMEOUT = "timeout"  # after ``Limits.seconds``, or as much CPU time
    MEMORY = "memory"  # with a MemoryError that it did not catch
    OUTPUT = "output"  # after more than ``Limits.output_bytes``
    FILES = "files"  # after more than ``Limits.files_bytes``, or too many files
    THREADS = "threads"  # after more than ``Limits.threads``


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use. Nothing but threads may be started: no other process."""

    seconds: float = 10.0  # wall clock, from the program's first line; also of CPU time
    memory_bytes: int = 512 * MIB  # address space, of which the interpreter takes 20 MiB
    output_bytes: int = 16 * MIB  # of stdout, and of stderr
    files_bytes: int = 64 * MIB  # of one file, and of all together
    threads: int = 32


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended, and what it wrote until then."""

    status: Status
    exit_code: int | None  # None unless ``status`` is EXITED
    signal: int | None  # None unless ``status`` is KILLED
    stdout: bytes  # at most ``Limits.output_bytes`` each
    stderr: bytes

    @property
    def succeeded(self) -> bool:
        """Whether the program ended by itself, with exit code 0."""
        return self.status is Status.EXITED and self.exit_code == 0


class SandboxError(RuntimeError):
    """The sandbox itself failed, whatever the program is."""

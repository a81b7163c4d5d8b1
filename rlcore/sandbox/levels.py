"""How each level starts an interpreter: its command, and what the code inside must give up."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from rlcore.sandbox.interpreter import INSIDE, environment_of
from rlcore.sandbox.slots import Slot
from rlcore.sandbox.system_calls import filter_code
from rlcore.sandbox.types import Level, Limits, SandboxError

_OPEN_FILES = 64
# What the interpreter's libraries are linked with; nothing of /etc, /home, /opt or /usr/local.
_SYSTEM = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/lib32")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_NOBODY = 65534


@dataclass(frozen=True, slots=True)
class Links:
    """Descriptors that the started process gets."""

    setup: int  # it reads the setup
    answer: int  # it writes "ready", or why not
    info: int  # bubblewrap writes the id of its first process
    filter: int  # bubblewrap reads the filter of system calls


Start = tuple[list[str], dict[str, str], dict[str, object]]


def start_of(
    level: Level, executable: Path, slot: Slot | None, limits: Limits, links: Links
) -> Start:
    """Return how ``level`` starts ``executable``: the command, its environment, and what the first
    line of its setup says.

    ``slot``: None only for ``namespaces`` as an ordinary user. Raises SandboxError where a program
    that the level needs is not installed.
    """
    if level is Level.NAMESPACES:
        return _in_namespaces(executable, slot, limits, links)
    if slot is None:
        raise SandboxError(f"level {level} needs a slot")
    setup: dict[str, object] = {
        "uid": slot.uid if level is Level.LANDLOCK else None,
        "directory": str(slot.scratch),
        "parent": True,
        # By user id: it counts what else runs as this user.
        "limits": _limits(limits, threads=level is Level.LANDLOCK),
    }
    if level is not Level.NONE:
        rules = [(str(executable.parents[1]), "read"), (str(slot.scratch), "write")]
        rules += [(path, "read") for path in (*_SYSTEM, "/etc/ld.so.cache") if os.path.exists(path)]
        rules += [(path, "file") for path in _DEVICES]
        setup |= {"landlock": rules, "filter": filter_code(may_exec=False)}
    own = {"HOME": str(slot.scratch), "TMPDIR": str(slot.scratch)}
    return _python(executable, links), {**environment_of(executable), **own}, setup


def _python(executable: Path, links: Links) -> list[str]:
    inside = str(executable.parents[1] / INSIDE)
    return [str(executable), "-S", "-s", "-P", "-B", inside, str(links.setup), str(links.answer)]


def _limits(limits: Limits, *, threads: bool) -> dict[str, int]:
    values = {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_CPU": max(1, int(limits.seconds + 1)),
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": _OPEN_FILES,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_FSIZE": limits.files_bytes,
    }
    if threads:
        values["RLIMIT_NPROC"] = limits.threads
    return values


def _in_namespaces(executable: Path, slot: Slot | None, limits: Limits, links: Links) -> Start:
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise SandboxError("bubblewrap is not installed; install the package bubblewrap")
    command = []
    if slot is not None and slot.uid is not None:
        # RLIMIT_NPROC never binds root, nor root's id in a user namespace.
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise SandboxError("setpriv is not installed; install the package util-linux")
        ids = [f"--reuid={slot.uid}", f"--regid={slot.uid}", "--clear-groups"]
        command = [setpriv, *ids, "--"]
    size = str(limits.files_bytes)
    command += [bubblewrap, "--unshare-all", "--unshare-user", "--disable-userns"]
    command += ["--uid", str(_NOBODY), "--gid", str(_NOBODY), "--hostname", "sandbox"]
    # As its first process the program is a child of bubblewrap, which then waits for its end; for
    # one in between it would not, and zombies would be left, which count against RLIMIT_NPROC.
    command += ["--die-with-parent", "--as-pid-1", "--cap-drop", "ALL"]
    command += ["--seccomp", str(links.filter), "--info-fd", str(links.info)]
    for path in _SYSTEM:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            command += ["--ro-bind", path, path]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    command += ["--ro-bind", str(executable.parents[1]), "/python"]
    # Neither /dev nor /dev/shm is limited in size by --dev.
    command += ["--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    command += ["--size", size, "--tmpfs", "/tmp", "--dir", "/tmp/work", "--chdir", "/tmp/work"]
    command += ["--remount-ro", "/", "--"]
    inside = Path("/python") / executable.relative_to(executable.parents[1])
    # Its parent is bubblewrap's first process, which ends with us.
    setup: dict[str, object] = {"directory": "/tmp/work", "limits": _limits(limits, threads=True)}
    environment = {**environment_of(inside), "HOME": "/tmp/work", "TMPDIR": "/tmp"}
    return [*command, *_python(inside, links)], environment, setup

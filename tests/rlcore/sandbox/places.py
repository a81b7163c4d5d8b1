"""Where the hostile programs run: at every level, as root and as an ordinary user, side by side."""

import ctypes
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import pyseccomp

from rlcore.sandbox.interpreter import environment_of, interpreter_in
from rlcore.sandbox.probe import weakness
from rlcore.sandbox.sandbox import Sandbox
from rlcore.sandbox.slots import checked, state_directory
from rlcore.sandbox.types import Level, Limits, Ran, Status
from tests.kernel import ORDINARY_UID, param

ROOT = Path(__file__).parents[3]
AS_ROOT = os.geteuid() == 0
CONFINING = (Level.NAMESPACES, Level.LANDLOCK, Level.LANDLOCK_SHARED_UID)
# (who, level): an ordinary user cannot become root, so that half of the table needs root.
PLACES = [("user", Level.NAMESPACES), ("user", Level.LANDLOCK_SHARED_UID)]
if AS_ROOT:
    PLACES += [("root", Level.NAMESPACES), ("root", Level.LANDLOCK)]
NAMES = [f"{who}-{level}" for who, level in PLACES]
NAMED = [param(level, name, who=who) for name, (who, level) in zip(NAMES, PLACES, strict=True)]
_PR_SET_CHILD_SUBREAPER = 36


def private_directory(owner: int | None = None) -> Path:
    """Return a state directory of its own, which borrows the interpreter of the shared one."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="rl-pipeline-hostile-"))
    checked(directory)
    executable = interpreter_in(state_directory())
    (directory / executable.parents[1].name).symlink_to(executable.parents[1])
    if owner is not None:
        for path in (directory, directory / "locks", directory / "slots"):
            os.chown(path, owner, owner)
    return directory


@dataclass
class Place:
    """One level, as one user."""

    level: Level
    directory: Path
    helper: subprocess.Popen[str] | None = None  # None: this process's own user

    def run(
        self,
        program: str,
        stdin: str = "",
        limits: Limits | None = None,
    ) -> Ran:
        limits = limits or Limits()
        if self.helper is None:
            return Sandbox(self.level, self.directory).run(program, stdin, limits)
        given = {"program": program, "stdin": stdin, "limits": asdict(limits)}
        said = self._asked(probe=False, **given)
        for name in ("stdout", "stderr"):
            said[name] = said[name].encode("latin-1")
        return Ran(**{**said, "status": Status(said["status"])})

    def weakness(self) -> str:
        if self.helper is None:
            return weakness(Sandbox(self.level, self.directory))
        return self._asked(probe=True)["weakness"]

    def _asked(self, **message: object) -> dict:
        assert self.helper is not None
        assert self.helper.stdin is not None
        assert self.helper.stdout is not None
        self.helper.stdin.write(json.dumps({"level": self.level, **message}) + "\n")
        self.helper.stdin.flush()
        return json.loads(self.helper.stdout.readline())


@contextmanager
def ordinary_user() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start the helper as an ordinary user; yield it and its state directory.

    It gets copies of our modules, since a checkout below a home may be closed to it.
    """
    modules = Path(tempfile.mkdtemp(prefix="rl-pipeline-hostile-"))
    modules.chmod(0o755)
    for source in ("rlcore/__init__.py", "schemas/__init__.py", "schemas/errors.py"):
        (modules / source).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / source, modules / source)
    shutil.copytree(
        ROOT / "rlcore/sandbox",
        modules / "rlcore/sandbox",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(pyseccomp.__file__, modules)
    shutil.copy(Path(__file__).with_name("other_user.py"), modules)
    directory = private_directory(owner=ORDINARY_UID)
    executable = interpreter_in(state_directory())
    ids = [f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups"]
    helper = subprocess.Popen(
        ["setpriv", *ids, "--", executable, modules / "other_user.py", directory],
        env={**environment_of(executable), "PATH": os.environ["PATH"], "HOSTILE_SECRET": "x"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    try:
        assert helper.stdout is not None
        assert helper.stdout.readline() == "ready\n"
        yield helper, directory
    finally:
        helper.kill()
        helper.communicate()
        shutil.rmtree(modules)
        shutil.rmtree(directory)


def leave_orphans_to_us(on: bool) -> None:
    """Make this process the parent of orphans below it, so that none is overlooked."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def programs() -> list[psutil.Process]:
    """Return the processes below this one that run the interpreter of the sandbox, or bubblewrap,
    and have not ended."""
    ours = interpreter_in(state_directory()).stat()
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                if process.name() in (
                    "bwrap",
                    "python3",
                ):  # left to us; it counts until it is reaped
                    os.waitpid(process.pid, os.WNOHANG)
                continue
            running = os.stat(f"/proc/{process.pid}/exe")
            same = (running.st_dev, running.st_ino) == (ours.st_dev, ours.st_ino)
            helper = "other_user.py" in " ".join(process.cmdline())
            if process.name() == "bwrap" or (same and not helper):
                found.append(process)
    return found


def wait_until_gone(seconds: float = 10.0) -> list[psutil.Process]:
    """Return the programs that are still there after ``seconds``."""
    deadline = time.monotonic() + seconds
    while (left := programs()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def mounts() -> list[str]:
    """Return what is mounted in this namespace."""
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def control_groups() -> set[str]:
    """Return the control groups that belong to a sandbox by their name."""
    return {str(path) for path in Path("/sys/fs/cgroup").glob("*/*sandbox*")}

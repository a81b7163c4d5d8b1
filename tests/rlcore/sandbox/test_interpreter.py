"""The sandbox's interpreter: readable by every user, writable by none, with nothing beside it."""

import errno
import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlcore.sandbox.interpreter import environment_of, interpreter_in
from rlcore.sandbox.slots import state_directory
from rlcore.sandbox.types import SandboxError
from tests.rlcore.sandbox.places import AS_ROOT, ORDINARY_UID, ROOT

# Begun by root, continued as an ordinary user, as services and entry points of containers are; its
# environment was made from a Python in a folder that only root can enter.
UNREADABLE = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from rlcore.sandbox.interpreter import interpreter_in
from schemas.errors import UserError
closed, directory, uid = Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
sys._base_executable = str(closed / "bin" / "python3")
closed.chmod(0o700 if os.geteuid() == 0 else 0)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
try:
    interpreter_in(directory)
except UserError as error:
    print(error)
"""


def run(executable: Path, program: str) -> str:
    return subprocess.run(
        [executable, "-S", "-s", "-P", "-c", program],
        env=environment_of(executable),
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    ).stdout


def test_it_is_made_once_and_runs_from_its_own_folder() -> None:
    executable = interpreter_in(state_directory())
    assert interpreter_in(state_directory()) == executable
    copy = executable.parents[1]
    paths = run(executable, "import sys, os; print(*sys.path, os.__file__, sep='\\n')").split()
    assert paths
    assert all(Path(path).is_relative_to(copy) for path in paths)
    assert not [path for path in paths if "site-packages" in path]


def test_a_folder_that_cannot_be_locked_has_no_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(SandboxError, match=r"cannot be locked: .*No locks available"):
        interpreter_in(tmp_path)


def test_its_extensions_load() -> None:
    """Their libraries may be beside the original, where other users cannot go."""
    executable = interpreter_in(state_directory())
    names = "ssl, sqlite3, zlib, bz2, lzma, ctypes, hashlib, decimal, json, unicodedata, zoneinfo"
    loaded = run(executable, f"import {names}\nprint(open('/proc/self/maps').read())")
    home = os.path.expanduser("~")
    if home != "/" and not str(executable).startswith(home):
        assert home not in loaded


def test_others_read_it_and_only_its_owner_writes() -> None:
    copy = interpreter_in(state_directory()).parents[1]
    for path in [copy, *copy.rglob("*")]:
        mode = path.stat().st_mode
        assert mode & 0o022 == 0, path
        assert mode & 0o004, path


def test_it_lacks_packages_and_tests() -> None:
    copy = interpreter_in(state_directory()).parents[1]
    names = {path.name for path in copy.rglob("*") if path.is_dir()}
    assert not names & {"site-packages", "test", "ensurepip"}


def test_an_original_that_this_user_cannot_read_is_a_sentence(tmp_path: Path) -> None:
    closed, directory = tmp_path / "closed", tmp_path / "state"
    (closed / "bin").mkdir(parents=True)
    (closed / "bin" / "python3").write_bytes(b"")
    directory.mkdir()
    uid = ORDINARY_UID if AS_ROOT else os.geteuid()
    command = [sys.executable, "-c", UNREADABLE, ROOT, closed, directory, str(uid)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        closed.chmod(0o700)
    assert ran.stdout == (
        f"the sandbox needs a copy of this Python, but user {uid} cannot read {closed}/bin/python3;"
        " let this user read it and enter its folders, or take an environment (make env PYTHON=...)"
        " of a Python that all users can read\n"
    ), ran.stderr


@pytest.mark.slow
def test_two_processes_may_make_it_at_once(tmp_path: Path) -> None:
    """And what a killed one began long ago is removed."""
    (tmp_path / ".making-long-ago" / "lib").mkdir(parents=True)
    os.utime(tmp_path / ".making-long-ago", (0, 0))
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(interpreter_in, [tmp_path, tmp_path]))
    assert made[0] == made[1]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"interpreter.lock", made[0].parents[1].name}
    assert run(made[0], "print(1)") == "1\n"

"""The sandbox's interpreter: readable by every user, writable by none, with nothing beside it."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlcore.sandbox.interpreter import environment_of, interpreter_in
from rlcore.sandbox.slots import state_directory


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


@pytest.mark.slow
def test_two_processes_may_make_it_at_once(tmp_path: Path) -> None:
    """And what a killed one began long ago is removed."""
    (tmp_path / ".making-long-ago" / "lib").mkdir(parents=True)
    os.utime(tmp_path / ".making-long-ago", (0, 0))
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(interpreter_in, [tmp_path, tmp_path]))
    assert made[0] == made[1]
    assert [path.name for path in tmp_path.iterdir()] == [made[0].parents[1].name]
    assert run(made[0], "print(1)") == "1\n"

"""The interpreter of the sandbox: a copy with the standard library and the code that starts there.

A copy, because the original may be below a home that other users cannot enter, and beside
site-packages and sources that a program must not read.
"""

import fcntl
import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from rlcore.sandbox.types import SandboxError
from schemas.errors import UserError

INSIDE = "inside.pyc"  # in the copy: ``rlcore.sandbox.inside``, compiled once
_UNFINISHED = ".making-"
_LOCK = "interpreter.lock"
_SOURCE = Path(__file__).with_name("inside.py")
# Large, and of no use to a program without a screen, a network or packages.
_LEFT_OUT = shutil.ignore_patterns(
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"),
    *("site-packages", "dist-packages", "distutils"),
    *("config-*", "*.a", "*.opt-1.pyc", "*.opt-2.pyc"),
)


def interpreter_in(directory: Path) -> Path:
    """Return the executable of the copy below ``directory``, made where it is missing.

    Any user can read and nobody but its owner can write the copy. Two processes may ask at once.
    Raises SandboxError where it cannot be made, or does not run, UserError where this user cannot
    read the original.
    """
    copy = directory / f"python-{_identity()}"
    executable = copy / "bin" / "python3"
    try:
        with (directory / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not executable.exists():
                _make(copy)
    except OSError as error:
        raise SandboxError(f"{directory / _LOCK} cannot be locked: {error}") from None
    return executable


def _make(copy: Path) -> None:
    directory = copy.parent
    for left in (copy, *directory.glob(f"{_UNFINISHED}*")):  # damaged, or of a killed process
        shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(dir=directory, prefix=_UNFINISHED))
    try:
        _fill(made)
        subprocess.run(
            [made / "bin" / "python3", "-SsP", "-c", "import ctypes, json, math, resource, select"],
            env=environment_of(made / "bin" / "python3"),
            check=True,
            capture_output=True,
            timeout=60,
        )
        made.rename(copy)
    except (OSError, subprocess.SubprocessError, py_compile.PyCompileError) as error:
        raise SandboxError(f"the interpreter cannot be copied to {directory}: {error}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _original() -> Path:
    """Return the executable behind a virtual environment's links."""
    return Path(getattr(sys, "_base_executable", sys.executable) or sys.executable).resolve()


def _identity() -> str:
    original = _original()
    for path in (original, Path(os.__file__)):
        if not os.access(path, os.R_OK, effective_ids=True):
            raise UserError(
                f"the sandbox needs a copy of this Python, but user {os.geteuid()} cannot read"
                f" {path}; let this user read it and enter its folders, or take an environment"
                " (make env PYTHON=...) of a Python that all users can read"
            )
    changed = original.stat().st_mtime_ns
    text = f"{sys.version} {original} {changed} {os.stat(os.__file__).st_mtime_ns}"
    return hashlib.sha256(text.encode() + _SOURCE.read_bytes()).hexdigest()[:16]


def _fill(copy: Path) -> None:
    library = copy / "lib" / f"python{sysconfig.get_python_version()}"
    for kind in ("platstdlib", "stdlib"):
        source = sysconfig.get_path(kind, vars={"platbase": sys.base_prefix})
        shutil.copytree(source, library, ignore=_LEFT_OUT, dirs_exist_ok=True)
    (copy / "bin").mkdir()
    executable = copy / "bin" / "python3"
    shutil.copy(_original(), executable)
    for path in _own_libraries([executable, *library.glob("lib-dynload/*.so")]):
        shutil.copy(path, copy / "lib" / path.name)
    py_compile.compile(
        str(_SOURCE),
        cfile=str(copy / INSIDE),
        dfile="<sandbox>",
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    for path in [copy, *copy.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)


def _own_libraries(files: list[Path]) -> set[Path]:
    """Return the shared libraries of ``files`` that are the interpreter's, not the system's."""
    ldd = shutil.which("ldd")
    if ldd is None:
        return set()
    said = subprocess.run([ldd, *files], capture_output=True, check=False, encoding="utf-8")
    found = {Path(word) for word in said.stdout.split() if word.startswith("/")}
    prefix = Path(sys.base_prefix)
    system = ("/usr/lib", "/lib")
    return {
        path
        for path in found
        if path.is_relative_to(prefix) and ".so" in path.name and not str(path).startswith(system)
    }


def environment_of(executable: Path) -> dict[str, str]:
    """Return the whole environment that the interpreter gets; equal hashes make results equal."""
    return {
        "LD_LIBRARY_PATH": str(executable.parents[1] / "lib"),
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHOME": str(executable.parents[1]),
    }

"""Finds the strongest level that holds on this machine, by attacking each."""

import json
import os
import socket
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from rlcore.sandbox.sandbox import Sandbox
from rlcore.sandbox.types import MIB, Level, Limits, SandboxError, Status
from schemas.errors import UserError

_LIMITS = Limits(seconds=20.0, memory_bytes=256 * MIB, threads=8)
_ATTACK = Path(__file__).with_name("attack.py")
_REMEDY = (
    "install the package bubblewrap (as root, libseccomp2 alone may be enough), or set"
    " {key} to none if you trust the policy with your files, keys and network"
)


@cache
def find_sandbox(setting: str = "auto", key: str = "reward.sandbox") -> Sandbox:
    """Return the sandbox of level ``setting``, or for "auto" of the strongest level that holds.

    "auto" never is level none. Asked again in the same process the answer is the same. ``key``: of
    the recipe, for errors. Raises UserError when the level, or for "auto" every level, does not
    hold on this machine, and for what is no level.
    """
    if setting not in ("auto", *Level):
        raise UserError(f"{key} = {setting!r} is no level; there are auto, {', '.join(Level)}")
    if setting == Level.NONE:
        try:
            return Sandbox(Level.NONE)
        except SandboxError as error:
            raise UserError(f"{key} = 'none' cannot run programs here: {error}") from None
    levels = levels_here() if setting == "auto" else (Level(setting),)
    reasons = []
    for level in levels:
        try:
            sandbox = Sandbox(level)
            if not (reason := weakness(sandbox)):
                return sandbox
        except SandboxError as error:
            reason = str(error)
        reasons.append(f"{level}: {reason}")
    named = f"{key} = {setting!r} does not hold"
    what = "no level of sandbox holds" if setting == "auto" else named
    raise UserError(f"{what} on this machine ({'; '.join(reasons)}); {_REMEDY.format(key=key)}")


def levels_here() -> tuple[Level, ...]:
    """Return the levels that this user can have, strongest first."""
    own = Level.LANDLOCK if os.geteuid() == 0 else Level.LANDLOCK_SHARED_UID
    return Level.NAMESPACES, own


def weakness(sandbox: Sandbox) -> str:
    """Return what a program in ``sandbox`` can do that it must not, "" when it withstands.

    Raises SandboxError when the sandbox does not start.
    """
    if sandbox.level not in (*levels_here(), Level.NONE):
        return "it is for ordinary users" if os.geteuid() == 0 else "it is for root"
    with ExitStack() as stack:
        ran = sandbox.run(
            _ATTACK.read_text(encoding="utf-8"), json.dumps(_facts(stack)), limits=_LIMITS
        )
    lines = ran.stdout.splitlines()
    # Too many threads, the last attack, is where the supervisor ends it at some levels.
    if not lines or not (ran.succeeded or ran.status is Status.THREADS):
        said = ran.stderr.decode(errors="replace").strip().splitlines()
        raise SandboxError(f"the attack ended early ({ran.status}, {' '.join(said[-1:])})")
    return ", ".join(f"a program {name.replace('_', ' ')}" for name in json.loads(lines[-1]))


def _facts(stack: ExitStack) -> dict[str, Any]:
    """Return what the attack needs to know: things out here that exist and could be reached."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rl-pipeline-probe-")))
    folder.chmod(0o777)
    for name, mode in (("everybodys", 0o644), ("own", 0o600)):
        (folder / name).write_text("secret", encoding="utf-8")
        (folder / name).chmod(mode)
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
    address = f"rl-pipeline-probe-{os.urandom(8).hex()}"
    abstract.bind("\0" + address)
    abstract.listen()
    return {
        "pid": os.getpid(),
        "files": [*map(str, folder.iterdir()), "/etc/passwd", __file__],
        "folder": str(folder),
        "port": server.getsockname()[1],
        "abstract": address,
        "memory_bytes": _LIMITS.memory_bytes,
        "threads": 4 * _LIMITS.threads,
    }

"""Whether the kernel lets tests have namespaces of their own, and the mark of those that need them.

``python -m tests.kernel COMMAND ...`` runs a command where it does not, as in a container with
Docker's default filter of system calls.
"""

import errno
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pyseccomp as seccomp
import pytest

from rlcore.sandbox.types import Level

ORDINARY_UID = 60_123  # of no account

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)


def param(level: Level, value: Any = None, *, who: str = "") -> Any:
    """Return ``value``, or else the level, as a parameter that is marked where it needs namespaces;
    ``who`` "user": those of an ordinary user."""
    marks = [pytest.mark.namespaces(who)] if level is Level.NAMESPACES else []
    return pytest.param(level if value is None else value, marks=marks)


@cache
def refusal(who: str = "") -> str:
    """Return why the kernel gives no namespaces to this process, or to an ordinary user where
    ``who`` is "user"; "" where it does. Where bubblewrap is missing it is not the kernel."""
    command = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    if who == "user" and os.geteuid() == 0:
        ids = [f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups"]
        command = ["setpriv", *ids, "--", *command]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return tried.stderr.strip().rpartition("\n")[2] if tried.returncode else ""


def strongest() -> Level:
    """Return the level of sandbox that the product must choose here."""
    if not refusal():
        return Level.NAMESPACES
    return Level.LANDLOCK if os.geteuid() == 0 else Level.LANDLOCK_SHARED_UID


def refuse() -> None:
    """Refuse them to this process and to all that it starts."""
    kernel = seccomp.SyscallFilter(seccomp.ALLOW)
    kernel.set_attr(seccomp.Attr.CTL_NNP, os.geteuid() != 0)
    for call in ("unshare", "setns", "mount"):
        kernel.add_rule(seccomp.ERRNO(errno.EPERM), call)
    for flag in NAMESPACES:
        kernel.add_rule(
            seccomp.ERRNO(errno.EPERM), "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag)
        )
    kernel.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")  # its flags are in memory
    kernel.load()


if __name__ == "__main__":
    refuse()
    os.execvp(sys.argv[1], sys.argv[1:])

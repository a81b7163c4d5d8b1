"""What another user of this machine can reach."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def reachable_by_others(folder: Path) -> Iterator[Path]:
    """Yield what is in ``folder``, and it, that a user who owns nothing in it can read, write or
    connect to, by the modes of all on the way from ``folder`` on."""
    mode = folder.lstat().st_mode
    if stat.S_ISLNK(mode):
        return
    if not stat.S_ISDIR(mode):
        if mode & 0o006:
            yield folder
        return
    if mode & 0o006:
        yield folder
    if mode & 0o001:
        for name in os.listdir(folder):
            yield from reachable_by_others(folder / name)

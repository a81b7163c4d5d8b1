"""Two questions about a local file: whether the process that writes it is alive, and whether it is
the one read before."""

import os
import time
from pathlib import Path

_CLOCKS_S = 2.0  # tolerance between process start times and file times


def is_abandoned(path: Path, pid: int) -> bool:
    """Return whether process ``pid`` of this machine, which made ``path``, has ended.

    Pids are reused: a process that started after ``path`` was last changed did not make it. False
    for a path that does not exist.
    """
    import psutil  # readers of a store, which ask nothing of it, need not wait for it

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        return process.create_time() > path.stat().st_mtime + _CLOCKS_S
    except psutil.NoSuchProcess:
        return True
    except FileNotFoundError:
        return False


# A file that changed later than this before it was looked at may change again within one tick of
# its filesystem's clock, and look the same.
SETTLED_S = 2.0


def stamp(path: str | Path) -> str:
    """Return a text that differs once the file at ``path`` has been changed, replaced or moved:
    size, times of modification and change, inode.

    "", which equals no stamp, where there is no file or it has only just changed. A change that
    keeps size and inode and sets back both times, which takes the rights of root, shows in none.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    latest = max(status.st_mtime_ns, status.st_ctime_ns)
    if time.time_ns() - latest < SETTLED_S * 1e9:
        return ""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"

"""What tells, without reading it, that a file is the one that was read before."""

import os
import time
from pathlib import Path

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

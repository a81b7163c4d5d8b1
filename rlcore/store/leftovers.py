"""Files whose names hold the pid of their maker: whether that process still lives."""

from pathlib import Path

import psutil

_CLOCKS_S = 2.0  # between the kernel's start times and a filesystem's


def is_abandoned(path: Path, pid: int) -> bool:
    """Tell whether process ``pid`` of this machine, which made ``path``, has ended.

    Pids are reused: a process that started after ``path`` was last changed did not make it. False
    for a path that is gone.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        return process.create_time() > path.stat().st_mtime + _CLOCKS_S
    except psutil.NoSuchProcess:
        return True
    except FileNotFoundError:
        return False

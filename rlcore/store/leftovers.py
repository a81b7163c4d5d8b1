"""Files with their writer's pid in the name: whether that process is still alive."""

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

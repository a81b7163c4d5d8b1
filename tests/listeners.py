"""Which addresses this process and all below it listen on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import psutil


def open_to_others() -> set[str]:
    """Return "process address:port" of each listener that another machine could reach."""
    found = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            name = " ".join(process.cmdline())[:120]
            connections = process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        for connection in connections:
            if connection.status != psutil.CONN_LISTEN:
                continue
            address = ip_address(connection.laddr.ip)
            if not (getattr(address, "ipv4_mapped", None) or address).is_loopback:
                found.add(f"{name} {connection.laddr.ip}:{connection.laddr.port}")
    return found


@contextmanager
def watched(every_s: float = 0.5) -> Iterator[set[str]]:
    """Check repeatedly until the block ends; the set has everything that was seen."""
    seen: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(every_s):
            seen.update(open_to_others())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()

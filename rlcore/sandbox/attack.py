"""The attack that a level must withstand before it is used; it runs inside, as any program does.

Reads facts about the outside from stdin, tries what a hostile program would try first, and prints
the names of what succeeded.
"""

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def reads_a_file(facts: dict[str, Any]) -> None:
    """Read files of the supervisor's user and of everybody."""
    _read_any(facts["files"])


def reads_the_environment(facts: dict[str, Any]) -> None:
    """Read the environment of the supervisor and of whoever started this process."""
    _read_any([f"/proc/{pid}/environ" for pid in (facts["pid"], os.getppid())])


def writes_outside(facts: dict[str, Any]) -> None:
    """Make a file in a folder that every user may write."""
    with open(os.path.join(facts["folder"], "written"), "w", encoding="utf-8") as file:
        file.write("outside")


def signals_the_supervisor(facts: dict[str, Any]) -> None:
    """Ask whether the supervisor could be sent a signal."""
    os.kill(facts["pid"], 0)


def connects(facts: dict[str, Any]) -> None:
    """Connect to a server of this machine."""
    socket.create_connection(("127.0.0.1", facts["port"]), timeout=1).close()


def connects_to_an_abstract_socket(facts: dict[str, Any]) -> None:
    """Connect to a socket that has no path."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect("\0" + facts["abstract"])


def starts_a_process(facts: dict[str, Any]) -> None:
    """Fork."""
    del facts
    if os.fork() == 0:
        os._exit(0)


def exceeds_its_memory(facts: dict[str, Any]) -> None:
    """Allocate what the limit leaves no room for."""
    bytearray(facts["memory_bytes"])


def exceeds_its_threads(facts: dict[str, Any]) -> None:
    """Start more threads than the limit, and outlive the supervisor's next look."""
    threading.stack_size(1 << 16)
    done = threading.Event()
    try:
        for _ in range(facts["threads"]):
            threading.Thread(target=done.wait).start()
        done.wait(1)
    finally:
        done.set()


# Each succeeds unless it raises.
ATTACKS: tuple[Callable[[dict[str, Any]], None], ...] = (
    reads_a_file,
    reads_the_environment,
    writes_outside,
    signals_the_supervisor,
    connects,
    connects_to_an_abstract_socket,
    starts_a_process,
    exceeds_its_memory,
    exceeds_its_threads,
)


def _read_any(paths: list[str]) -> None:
    for path in paths:
        with suppress(OSError), open(path, "rb") as file:
            if file.read(1):
                return
    raise PermissionError


def main() -> None:
    """Print the names of the attacks that succeeded, as JSON."""
    facts = json.loads(sys.stdin.read())
    succeeded = []
    for attack in ATTACKS:
        with suppress(OSError, RuntimeError, MemoryError):
            attack(facts)
            succeeded.append(attack.__name__)
        # Each time: the supervisor may end this process in the next attack.
        print(json.dumps(succeeded), flush=True)


if __name__ == "__main__":
    main()

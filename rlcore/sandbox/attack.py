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


def reads_a_file(facts: dict[str, Any]) -> bool:
    """Read files of the supervisor's user and of everybody."""
    return any(_read(path) for path in facts["files"])


def reads_the_environment(facts: dict[str, Any]) -> bool:
    """Read the environment of the supervisor and of whoever started this process."""
    return any(_read(f"/proc/{pid}/environ") for pid in (facts["pid"], os.getppid()))


def writes_outside(facts: dict[str, Any]) -> bool:
    """Make a file in a folder that every user may write."""
    path = os.path.join(facts["folder"], "written")
    with open(path, "w", encoding="utf-8") as file:
        file.write("outside")
    return True


def signals_the_supervisor(facts: dict[str, Any]) -> bool:
    """Ask whether the supervisor could be sent a signal."""
    os.kill(facts["pid"], 0)
    return True


def connects(facts: dict[str, Any]) -> bool:
    """Connect to a server of this machine."""
    socket.create_connection(("127.0.0.1", facts["port"]), timeout=1).close()
    return True


def connects_to_an_abstract_socket(facts: dict[str, Any]) -> bool:
    """Connect to a socket that has no path."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect("\0" + facts["abstract"])
    return True


def starts_a_process(facts: dict[str, Any]) -> bool:
    """Fork."""
    del facts
    if os.fork() == 0:
        os._exit(0)
    return True


def exceeds_its_memory(facts: dict[str, Any]) -> bool:
    """Allocate what the limit leaves no room for."""
    return len(bytearray(facts["memory_bytes"])) > 0


def exceeds_its_threads(facts: dict[str, Any]) -> bool:
    """Start more threads than the limit, and outlive the supervisor's next look."""
    threading.stack_size(1 << 16)
    done = threading.Event()
    started = [threading.Thread(target=done.wait) for _ in range(facts["threads"])]
    try:
        for thread in started:
            thread.start()
        return not done.wait(1)
    finally:
        done.set()


ATTACKS: tuple[Callable[[dict[str, Any]], bool], ...] = (
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


def _read(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def main() -> None:
    """Print the names of the attacks that succeeded, as JSON."""
    facts = json.loads(sys.stdin.read())
    succeeded = []
    for attack in ATTACKS:
        with suppress(OSError, RuntimeError, MemoryError):
            if attack(facts):
                succeeded.append(attack.__name__)
        # Each time: the supervisor may end this process in the next attack.
        print(json.dumps(succeeded), flush=True)


if __name__ == "__main__":
    main()

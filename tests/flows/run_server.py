"""Imports the pipeline once and forks a process for every run, which saves ten seconds each.

python -m tests.flows.run_server SOCKET

A request is (working directory, environment, file for the output, arguments of ``crash_points``);
the answers are the run's pid and, once it has ended, its return code as ``subprocess`` has it. The
run is a process of its own that a test may kill. The server, and its current run, end with the
process that started it.
"""

import os
import signal
import sys
import threading
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path

LOADED = (
    "flows.rl_pipeline",
    "rlcore.learner.learner",
    "rlcore.rewards.worker",
    "rlcore.engines.transformers_engine",
    "tests.flows.crash_points",
    # Imported late, by deepspeed.initialize and from_pretrained.
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "transformers.models.auto.modeling_auto",
)
# The interpreter's own; jemalloc's, which it stops around a fork; Polars' remover of spilled files.
FORK_SAFE = {"python", "jemalloc_bg_thd", "polars-ooc-clea"}


def serve(connection: Connection) -> None:
    """Answer until the other end closes; returns in a forked run as well, when that has ended."""
    while True:
        try:
            directory, environment, output, arguments = connection.recv()
        except EOFError:
            return
        pid = os.fork()
        if pid == 0:
            connection.close()
            _run(directory, environment, output, arguments)
            return
        connection.send(pid)
        ended = os.pidfd_open(pid)
        if ended not in wait([connection, ended]):  # the other end has closed
            os.killpg(pid, signal.SIGKILL)
            return
        os.close(ended)
        _, status = os.waitpid(pid, 0)
        connection.send(os.waitstatus_to_exitcode(status))


def _run(directory: str, environment: dict[str, str], output: str, arguments: list[str]) -> None:
    """Become what ``python -m tests.flows.crash_points`` is, started in ``directory``."""
    os.setsid()
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.path.insert(0, directory)
    sys.argv = ["crash_points", *arguments]
    sys.modules["tests.flows.crash_points"].main()


def main() -> None:
    """Load everything, then serve."""
    for name in LOADED:
        import_module(name)
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    unsafe = set(threads) - FORK_SAFE
    assert not unsafe, f"the threads {unsafe} may hold a lock that a fork would never release"
    assert threading.active_count() == 1
    serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()

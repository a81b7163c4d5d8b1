"""A supervisor that is killed leaves no program behind."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from rlcore.sandbox.probe import levels_here
from rlcore.sandbox.sandbox import Sandbox
from rlcore.sandbox.slots import state_directory
from rlcore.sandbox.types import Level
from tests.kernel import param
from tests.rlcore.sandbox.places import ROOT, leave_orphans_to_us, programs, wait_until_gone

SUPERVISOR = """
import sys
from rlcore.sandbox.sandbox import Sandbox
from rlcore.sandbox.types import Level, Limits
sandbox = Sandbox(Level(sys.argv[1]))
print("ready", flush=True)
while True:
    sandbox.run("import time\\nopen('left', 'w').write('x'); time.sleep(float(input()))",
                sys.argv[2], limits=Limits(seconds=1000))
"""


@pytest.fixture(autouse=True)
def _orphans() -> Iterator[None]:
    leave_orphans_to_us(True)
    yield
    leave_orphans_to_us(False)


def supervisor(level: Level, seconds: float) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, level, str(seconds)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("level", [param(level) for level in (*levels_here(), Level.NONE)])
def test_no_program_outlives_a_killed_supervisor(level: Level) -> None:
    process = supervisor(level, 1000)
    deadline = time.monotonic() + 300
    while not programs() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert programs()
    kill(process)
    left = wait_until_gone()
    assert not left, [one.cmdline() for one in left]
    Sandbox(level)  # the next one removes the scratch folder
    slots = state_directory() / "slots"
    assert not any((folder / "left").exists() for folder in slots.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("level", [param(level) for level in levels_here()])
def test_nor_one_killed_at_any_moment(level: Level) -> None:
    """Also before the program has begun, when the kernel does not yet know whose child it is.

    Of bubblewrap itself a process may stay, which waits for its killed parent and has no program;
    the next sandbox ends it, as the watcher of a reward function does. On a busy machine it may
    come to wait only after one was made: then the one after that ends it.
    """
    rng = random.Random(0)
    for _ in range(25):
        process = supervisor(level, 0.0)
        time.sleep(rng.uniform(0, 0.08))
        kill(process)
        left = wait_until_gone(2)
        assert all(one.name() == "bwrap" and not one.children() for one in left)
        for _ in range(3):
            Sandbox(level)
            if not (left := wait_until_gone(3)):
                break
        assert not left, [one.cmdline() for one in left]

"""A process of a run is known after whoever started it has gone."""

import subprocess
import sys
import time

import psutil
import pytest

from tests.chaos.watching import Family, until

pytestmark = pytest.mark.timeout(60)
STARTS_ONE = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"


def test_a_process_whose_parent_has_gone_is_an_orphan() -> None:
    family = Family()
    command = [sys.executable, "-c", STARTS_ONE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        orphan = psutil.Process(int(parent.stdout.readline()))
        family.look(psutil.Process(parent.pid))
        parent.kill()
    assert family.left(0.5) == [f"{orphan.pid} sleep"]
    orphan.kill()
    assert family.left(30.0) == []


def test_a_process_that_comes_later_belongs_to_the_run() -> None:
    """Workers that replace others may be left behind as well."""
    family = Family()
    command = [sys.executable, "-c", f"input(); {STARTS_ONE}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        family.look(psutil.Process(parent.pid))
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        later = psutil.Process(int(parent.stdout.readline()))
        family.look()
        parent.kill()
    assert family.living() == [f"{later.pid} sleep"]
    later.kill()


def test_a_wait_says_how_long_it_took_or_that_it_was_in_vain() -> None:
    began = time.monotonic()
    assert until(lambda: time.monotonic() - began > 0.3, 30.0) is not None
    assert until(lambda: False, 0.1) is None

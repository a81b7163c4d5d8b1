"""Processes that do not answer are seen to be stopped, and end."""

import os
import signal
import subprocess

import psutil
import pytest

from rlcore.cluster.watch import end, is_alive, is_stopped

pytestmark = pytest.mark.timeout(60)


def test_a_stopped_process_is_told_and_ended() -> None:
    process = subprocess.Popen(["sleep", "100"])
    assert not is_stopped(process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    assert is_stopped(process.pid)
    end([psutil.Process(process.pid)])
    assert not is_alive(psutil.Process(process.pid)), "a zombie, until its parent asks"
    assert process.wait(300) == -signal.SIGKILL
    assert not is_stopped(process.pid)


def test_what_has_ended_is_left_alone() -> None:
    process = psutil.Popen(["true"])
    process.wait()
    end([process])

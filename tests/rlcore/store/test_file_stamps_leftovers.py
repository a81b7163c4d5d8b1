"""A file is swept once its maker is dead, and never while it lives."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rlcore.store.file_stamps import is_abandoned


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("")
    return tmp_path / "file"


def test_a_living_makers_file_is_kept(path: Path) -> None:
    """Weights swept under a running sync would end that run."""
    assert not is_abandoned(path, os.getpid())


def test_a_dead_makers_file_is_swept(path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert is_abandoned(path, ended.pid)


def test_a_maker_that_nobody_has_waited_for_is_dead(path: Path) -> None:
    """It keeps its pid as a zombie while its parent lives."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(ended.pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        pass
    try:
        assert is_abandoned(path, ended.pid)
    finally:
        ended.wait()


def test_a_process_that_started_later_got_the_makers_pid(path: Path) -> None:
    """Left alone, the files would stay as long as that process."""
    begun = psutil.Process().create_time()
    os.utime(path, (begun - 60, begun - 60))
    assert is_abandoned(path, os.getpid())
    os.utime(path, (begun, begun))
    assert not is_abandoned(path, os.getpid()), "clocks of kernel and disk differ a little"


def test_a_path_that_is_gone_is_nobodys_to_sweep(tmp_path: Path) -> None:
    assert not is_abandoned(tmp_path / "gone", os.getpid())

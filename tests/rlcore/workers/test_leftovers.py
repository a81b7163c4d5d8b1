"""A learner that is killed while it writes weights leaves nothing in memory for good."""

import os
import subprocess
from pathlib import Path

from rlcore.workers.leftovers import remove_half_written


def test_files_of_dead_writers_go_and_others_stay(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, alive = ended.pid, os.getpid()
    names = {
        f".rl-weights-{alive}-0123abcd.safetensors.{dead}": False,
        f".rl-weights-{dead}-0123abcd.safetensors.{alive}": True,
        f"rl-weights-{dead}-0123abcd.safetensors": True,  # of a flow process: the next sync's
        f".other-{alive}-0123abcd.safetensors.{dead}": True,
    }
    for name in names:
        (tmp_path / name).write_bytes(b"half")
    remove_half_written(tmp_path)
    assert {name: (tmp_path / name).exists() for name in names} == names

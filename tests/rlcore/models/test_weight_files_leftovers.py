"""A process that is killed while it writes or sends weights leaves nothing in memory for good."""

import os
import subprocess
from pathlib import Path

from rlcore.models.weight_files import remove_abandoned_weights


def test_files_of_dead_writers_go_and_others_stay(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, alive = ended.pid, os.getpid()
    names = {
        f".rl-weights-{alive}-0123abcd.safetensors.{dead}": False,
        f".rl-weights-{dead}-0123abcd.safetensors.{alive}": True,
        f"rl-weights-{dead}-0123abcd.safetensors": False,
        f"rl-weights-{alive}-0123abcd.safetensors": True,
        f".other-{alive}-0123abcd.safetensors.{dead}": True,
    }
    for name in names:
        (tmp_path / name).write_bytes(b"half")
    remove_abandoned_weights(tmp_path)
    assert {name: (tmp_path / name).exists() for name in names} == names

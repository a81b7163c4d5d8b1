"""Weights on their way to the engines leave nothing in shared memory."""

import os
from pathlib import Path

from rlcore.weights.files import exchange_file

SHARED_MEMORY = Path("/dev/shm")
NO_PID = 4194305  # above the kernel's largest


def test_what_a_kill_left_is_swept_and_what_others_use_is_kept() -> None:
    """28 GB for each kill of a 7B run, until the machine has none left."""
    dead = SHARED_MEMORY / f"rl-weights-{NO_PID}-0123abcd.safetensors"
    live = SHARED_MEMORY / f"rl-weights-{os.getpid()}-0123abcd.safetensors"
    foreign = SHARED_MEMORY / f"rl-weights-{NO_PID}-notes.txt"
    files = (dead, live, foreign)
    try:
        for file in files:
            file.write_bytes(b"weights")
        with exchange_file() as path:
            path.write_bytes(b"new weights")
            assert [file.exists() for file in files] == [False, True, True]
        assert not path.exists()
    finally:
        for file in files:
            file.unlink(missing_ok=True)

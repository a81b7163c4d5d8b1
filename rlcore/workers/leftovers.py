"""Weights files in shared memory that a learner was writing when it was killed."""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from rlcore.store.leftovers import is_abandoned

# ``write_state`` of ``rlcore.weights.files`` writes next to an exchange file, under its own pid.
_HALF_WRITTEN = re.compile(r"\.rl-weights-\d+-[0-9a-f]{8}\.safetensors\.(\d+)")


def remove_half_written(folder: Path | None = None) -> None:
    """Remove the files of this user whose writers on this machine have ended.

    ``folder``: where exchange files are, by default as ``exchange_file`` has them.
    """
    if folder is None:
        shared_memory = Path("/dev/shm")
        folder = shared_memory if shared_memory.is_dir() else Path(tempfile.gettempdir())
    for entry in os.scandir(folder):
        found = _HALF_WRITTEN.fullmatch(entry.name)
        if found is None:
            continue
        with suppress(FileNotFoundError):  # removed by another run meanwhile
            ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if ours and is_abandoned(Path(entry.path), int(found[1])):
                Path(entry.path).unlink()

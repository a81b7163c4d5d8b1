"""Weights files in shared memory whose process was killed while it wrote or sent them."""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from rlcore.store.leftovers import is_abandoned

# ``exchange_file`` of ``rlcore.weights.files`` names its file by the pid of a flow; ``write_state``
# writes next to it first, and adds its own pid.
_EXCHANGED = re.compile(
    r"rl-weights-(?P<flow>\d+)-[0-9a-f]{8}\.safetensors"
    r"|\.rl-weights-\d+-[0-9a-f]{8}\.safetensors\.(?P<writer>\d+)"
)


def remove_abandoned_weights(folder: Path | None = None) -> None:
    """Remove the files of this user whose processes on this machine have ended.

    A sync does so before it writes; a run that syncs no more does it when it ends. ``folder``:
    where exchange files are, by default as ``exchange_file`` has them.
    """
    if folder is None:
        shared_memory = Path("/dev/shm")
        folder = shared_memory if shared_memory.is_dir() else Path(tempfile.gettempdir())
    for entry in os.scandir(folder):
        found = _EXCHANGED.fullmatch(entry.name)
        if found is None:
            continue
        with suppress(FileNotFoundError):  # removed by another run meanwhile
            ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if ours and is_abandoned(Path(entry.path), int(found["flow"] or found["writer"])):
                Path(entry.path).unlink()

"""Where the weights files that a flow sends are, and those that were left by killed flows."""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from rlcore.store.leftovers import is_abandoned

# ``files.exchange_file`` names its file by its process's pid; ``files.write_state`` writes next to
# it first, and adds its own.
_EXCHANGED = re.compile(
    r"rl-weights-(?P<flow>\d+)-[0-9a-f]{8}\.safetensors"
    r"|\.rl-weights-\d+-[0-9a-f]{8}\.safetensors\.(?P<writer>\d+)"
)


def exchange_folder() -> Path:
    """Return /dev/shm, or where there is none the folder of temporary files."""
    shared_memory = Path("/dev/shm")
    return shared_memory if shared_memory.is_dir() else Path(tempfile.gettempdir())


def remove_abandoned_weights(folder: Path | None = None) -> None:
    """Remove the files of this user whose processes on this machine have ended.

    Done before such a file is written, and when a run ends. ``folder``: by default
    ``exchange_folder()``.
    """
    for entry in os.scandir(folder or exchange_folder()):
        found = _EXCHANGED.fullmatch(entry.name)
        if found is None:
            continue
        with suppress(FileNotFoundError):  # removed by another run meanwhile
            ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if ours and is_abandoned(Path(entry.path), int(found["flow"] or found["writer"])):
                Path(entry.path).unlink()

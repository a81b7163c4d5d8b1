"""Weights of a model directory into running engines, by the same way that training syncs them."""

import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlcore.engines.pool import EnginePool
from rlcore.engines.types import WeightStamp, WeightUpdate
from rlcore.store.leftovers import is_abandoned
from rlcore.weights.digest import (
    combined_digest,
    read_checkpoint,
    tensor_digests,
    write_state,
)

_EXCHANGE_FILE = re.compile(r"rl-weights-(\d+)-[0-9a-f]{8}\.safetensors")


def load_model_directory(engines: EnginePool, model_dir: Path) -> WeightStamp:
    """Make every engine sample from the Hugging Face directory ``model_dir``; return the stamp.

    Raises WeightSyncError when an engine loaded anything else.
    """
    state = read_checkpoint(model_dir)
    tensors = tensor_digests(state.items())
    with exchange_file() as path:
        write_state(path, state)
        stamp = WeightStamp(0, combined_digest(tensors))
        return engines.load_weights(WeightUpdate(stamp, str(path), tensors))


@contextmanager
def exchange_file() -> Iterator[Path]:
    """Yield a path in shared memory for one weights file; the file is gone afterwards.

    Files that killed processes of this machine left there are swept first.
    """
    shared_memory = Path("/dev/shm")
    folder = shared_memory if shared_memory.is_dir() else Path(tempfile.gettempdir())
    _sweep(folder)
    path = folder / f"rl-weights-{os.getpid()}-{uuid.uuid4().hex[:8]}.safetensors"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    for entry in os.scandir(folder):
        found = _EXCHANGE_FILE.fullmatch(entry.name)
        if found is None:
            continue
        try:
            ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
        except FileNotFoundError:  # another run's sync has just ended
            continue
        if ours and is_abandoned(Path(entry.path), int(found[1])):
            Path(entry.path).unlink(missing_ok=True)

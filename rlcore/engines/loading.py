"""Loads the weights of a model directory into running engines, the same way as training syncs
them."""

from pathlib import Path

from rlcore.engines.pool import EnginePool
from rlcore.weights.digest import combined_digest, digests_and_sums
from rlcore.weights.files import exchange_file, read_checkpoint, write_state
from rlcore.weights.stamp import WeightStamp, WeightUpdate


def load_model_directory(engines: EnginePool, model_dir: Path) -> WeightStamp:
    """Make every engine sample from the Hugging Face directory ``model_dir``; return the stamp.

    Raises WeightSyncError when an engine loaded anything else.
    """
    state = read_checkpoint(model_dir)
    tensors, sums = digests_and_sums(state.items())
    with exchange_file() as path:
        write_state(path, state)
        stamp = WeightStamp(0, combined_digest(tensors))
        return engines.load_weights(WeightUpdate(stamp, str(path), tensors, sums))

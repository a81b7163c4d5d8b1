"""The sync phase: the learner's weights reach every engine, and each proves what it loaded."""

import os
import tempfile
import uuid
from pathlib import Path

from rlcore.learner.group import LearnerGroup
from rlcore.rollout.group import RolloutGroup
from rlcore.rollout.types import WeightStamp


def sync_weights(learner: LearnerGroup, engines: RolloutGroup) -> WeightStamp:
    """Publish the learner's weights and load them into all engines; return the proven stamp.

    The file passes through shared memory, so learner rank 0 and the engines share a node.
    Raises WeightSyncError when an engine loaded anything but what was sent.
    """
    path = _exchange() / f"rl-weights-{os.getpid()}-{uuid.uuid4().hex[:8]}.safetensors"
    try:
        return engines.load_weights(learner.publish(str(path)))
    finally:
        path.unlink(missing_ok=True)


def _exchange() -> Path:
    shared_memory = Path("/dev/shm")
    return shared_memory if shared_memory.is_dir() else Path(tempfile.gettempdir())

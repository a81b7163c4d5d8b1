"""The sync phase: the learner's weights reach every engine, and each proves what it loaded."""

from rlcore.learner.group import LearnerGroup
from rlcore.rollout.group import RolloutGroup
from rlcore.rollout.loading import exchange_file
from rlcore.rollout.types import WeightStamp


def sync_weights(learner: LearnerGroup, engines: RolloutGroup) -> WeightStamp:
    """Publish the learner's weights and load them into all engines; return the proven stamp.

    The file passes through shared memory, so learner rank 0 and the engines share a node.
    Raises WeightSyncError when an engine loaded anything but what was sent.
    """
    with exchange_file() as path:
        return engines.load_weights(learner.publish(str(path)))

"""Imports what the processes of a run import, so that the bytecode of it is cached.

python -m rlcore.workers.imports

A new environment has none, and the processes of its first run, which start at the same time, would
each compile the same files, while the run waits for them.
"""

from importlib import import_module

from rlcore.engines.registry import ENGINES
from rlcore.workers.workers import LEARNER, REWARD_WORKER

CLASSES = (LEARNER, ENGINES["transformers"].target, REWARD_WORKER)
CLUSTER = "rlcore.cluster.ray_cluster"


def import_all() -> None:
    """Import the modules of the classes, what these import late, and that of the cluster."""
    for target in CLASSES:
        module, _, name = target.partition(":")
        for late in getattr(getattr(import_module(module), name), "IMPORTS", ()):
            import_module(late)
    import_module(CLUSTER)


if __name__ == "__main__":
    import_all()

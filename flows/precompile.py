"""Compiles what the workers of a first run import, while the Prefect server starts.

A new environment has no bytecode of the libraries, and no machine code of our loops. Workers that
miss it make it themselves, one file after the other, which takes longer than all else that they do
at their start. ``flows.local`` starts this program beside the server, which leaves it a core; it
imports what they import.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from flows import services
from flows.places import ROOT

NAME = "precompile"
# What is imported later: by a model that is built from scratch, its passes, and an opened run.
LATE = (
    "transformers.models.qwen2.modeling_qwen2",
    "rlcore.kernels.loops",
    "rlcore.kernels.documents",
    "ray",
    "wandb",
)


def is_needed() -> bool:
    """Return whether bytecode is missing that this program would leave, and it may be written."""
    last = find_spec(LATE[-1])
    if sys.dont_write_bytecode or last is None or last.cached is None:
        return False
    place = Path(last.cached)
    nearest = next(folder for folder in place.parents if folder.exists())
    return not place.exists() and os.access(nearest, os.W_OK)


def start(home: Path) -> None:
    """Start this program where it is needed, and return at once. Nothing waits for its end."""
    if is_needed() and services.find(home, NAME) is None:
        command = [sys.executable, "-m", "flows.precompile"]
        services.start(home, NAME, command, os.environ, cwd=ROOT)


def main() -> None:
    """Import the classes of the learner and of the engine of small models, and ``LATE``."""
    from rlcore.cluster.targets import import_all
    from rlcore.engines.registry import ENGINES
    from rlcore.workers.workers import LEARNER

    services.step_back()
    for target in (LEARNER, ENGINES["transformers"].target):
        import_all(target)
    for module in LATE:
        import_module(module)


if __name__ == "__main__":
    main()

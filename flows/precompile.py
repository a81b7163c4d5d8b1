"""Compiles what a first run imports, on a core that is idle while the Prefect server starts.

A new environment has no bytecode of the libraries. The flow and its workers would make it
themselves, each one file after the other, which takes longer than all else that they do at their
start. ``flows.local`` starts this program beside the server; it imports what they import, and gets
no core that anyone else wants.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from flows import services
from flows.places import ROOT

NAME = "precompile"
FIRST = ("ray", "wandb")  # the flow's own, which are wanted before the workers'
LAST = "transformers.models.qwen2.modeling_qwen2"  # of a model from scratch
IDLE = 19


def is_needed() -> bool:
    """Return whether no run has imported its libraries yet, and their bytecode may be written."""
    imported = find_spec(FIRST[0])
    if sys.dont_write_bytecode or imported is None or imported.cached is None:
        return False
    place = Path(imported.cached)
    nearest = next(folder for folder in place.parents if folder.exists())
    return not place.exists() and os.access(nearest, os.W_OK)


def start(home: Path) -> None:
    """Start this program where it is needed, and return at once. Nothing waits for its end."""
    if is_needed() and services.find(home, NAME) is None:
        command = [sys.executable, "-m", "flows.precompile"]
        services.start(home, NAME, command, os.environ, cwd=ROOT)


def main() -> None:
    """Import ``FIRST``, the classes of the learner and of the engine of small models with the
    libraries that they list, ``LAST``."""
    from rlcore.cluster.targets import imports_of
    from rlcore.engines.registry import ENGINES
    from rlcore.workers.workers import LEARNER

    services.step_back(IDLE)
    services.step_aside()
    workers = (imports_of(target) for target in (LEARNER, ENGINES["transformers"].target))
    for module in chain(FIRST, *workers, [LAST]):
        if not module.startswith("rlcore."):  # whose loops the learner compiles, while it waits
            import_module(module)
    if find_spec("numba") is not None:
        from rlcore.kernels.compiled import import_compiler

        import_compiler()


if __name__ == "__main__":
    main()

"""Which rollout engine sampled what RL recorded.

Engines draw by different random numbers, so a run goes on with the one it has. The name is in the
lineage of all that RL records; read is that of its iterations, which are never pruned, and of which
the first is there before a rollout.
"""

from collections.abc import Iterable

from rlcore.results.provenance import ENGINE
from rlcore.rl.history import KIND
from rlcore.store.checks import ArtifactError
from rlcore.store.reader import ArtifactReader


def recorded_engine(store: ArtifactReader, key: str) -> str | None:
    """Return the engine of the newest iteration recorded below ``key``; None where none says."""
    return newest_engine(store, KIND, reversed(store.keys(KIND, f"{key}/")))


def forked_engine(store: ArtifactReader, fork: str | None) -> str | None:
    """Return the engine of the iteration that ``rl.fork`` names, "<key>@<number>"."""
    if fork is None:
        return None
    key, _, number = fork.partition("@")
    return newest_engine(store, KIND, [f"{key}/{int(number):06d}"])


def newest_engine(store: ArtifactReader, kind: str, keys: Iterable[str]) -> str | None:
    """Return the engine that the first readable artifact of ``keys`` names, if it names one."""
    for key in keys:
        try:
            manifest = store.peek(kind, key)
        except ArtifactError:  # it is reported, and made again, where the run comes to it
            continue
        if manifest is not None:
            return manifest.metadata.get(ENGINE)
    return None

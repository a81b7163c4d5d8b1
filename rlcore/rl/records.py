"""What an RL run records per iteration: rollouts, rewards, advantages, each an artifact."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from rlcore.rl.batch import RolloutBatch, concat_batches, round_of
from rlcore.rl.groups import Groups
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef

# Metadata of advantages: tokens per pass of the learners that scored them and trained on them.
PACKED_FOR = "packed_for"


class Records:
    """Writes records below ``key``; one that an earlier attempt left is found again."""

    __slots__ = ("_key", "_lineage", "_log", "store")

    def __init__(
        self, store: ArtifactStore, key: str, lineage: Lineage, log: Callable[[str], None]
    ) -> None:
        self.store, self._key, self._lineage, self._log = store, key, lineage, log

    def name(self, iteration: int, suffix: str = "") -> str:
        """Return the key of an iteration's record; ``suffix`` distinguishes generation rounds."""
        return f"{self._key}/{iteration:06d}{suffix}"

    def find(
        self,
        kind: str,
        name: str,
        parents: Mapping[str, ArtifactRef] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ArtifactRef | None:
        """Return what was recorded from the same ``parents`` with the same ``metadata``; drop
        anything else."""
        found = self.store.find_or_discard(kind, name, self._log)
        if found is None:
            return None
        manifest = self.store.manifest(found)
        made_from = {role: ref.sha256 for role, ref in manifest.parents.items()}
        if all(made_from.get(role) == ref.sha256 for role, ref in (parents or {}).items()) and all(
            manifest.metadata.get(name) == value for name, value in (metadata or {}).items()
        ):
            return found
        self.store.discard(kind, name)
        return None

    def drawn(self, groups: Groups) -> RolloutBatch:
        """Read every group of all rounds; ``.only(groups.kept)`` are those that train."""
        return concat_batches([round_of(self.store, *refs) for refs in groups.rounds])

    def put(
        self,
        kind: str,
        name: str,
        tables: Mapping[str, pl.DataFrame],
        parents: Mapping[str, ArtifactRef] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ArtifactRef:
        """Write ``tables`` as an artifact made from ``parents`` and the run's own; ``metadata``:
        JSON values."""
        lineage = replace(
            self._lineage,
            parents={**self._lineage.parents, **(parents or {})},
            metadata={**self._lineage.metadata, **(metadata or {})},
        )
        return self.store.put(kind, name, tables=dict(tables), lineage=lineage)

    def replace(
        self,
        kind: str,
        name: str,
        tables: Mapping[str, pl.DataFrame],
        parents: Mapping[str, ArtifactRef],
    ) -> ArtifactRef:
        """``put``, in place of what an earlier attempt left."""
        self.store.discard(kind, name)
        return self.put(kind, name, tables, parents)

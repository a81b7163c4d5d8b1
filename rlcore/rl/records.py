"""What an RL run records per iteration: rollouts, rewards, advantages, each an artifact.

What this process has written or read in the iteration under way it keeps, so that a phase gets
from memory what the one before it recorded. A phase that runs in another process reads it, once.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from rlcore.rl.batch import beside, drawn, of_prompts
from rlcore.rl.groups import Groups
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef

# Metadata of advantages: tokens per pass of the learners that scored them and trained on them.
PACKED_FOR = "packed_for"


class Records:
    """Writes records below ``key``; one that an earlier attempt left is found again."""

    __slots__ = ("_frames", "_key", "_made", "lineage", "log", "store")

    def __init__(
        self, store: ArtifactStore, key: str, lineage: Lineage, log: Callable[[str], None]
    ) -> None:
        self.store, self._key, self.lineage, self.log = store, key, lineage, log
        self.forget()

    def forget(self) -> None:
        """Begin an iteration: let go of what the one before it kept."""
        self._made: dict[tuple[str, str], tuple[ArtifactRef, Lineage]] = {}  # by kind and name
        self._frames: dict[tuple[str, str], pl.DataFrame] = {}  # by content and table

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
        if (kind, name) not in self._made:
            found = self.store.find_or_discard(kind, name, self.log)
            if found is None:
                return None
            manifest = self.store.manifest(found)
            made = replace(self.lineage, parents=manifest.parents, metadata=manifest.metadata)
            self._made[kind, name] = found, made
        found, made = self._made[kind, name]
        made_from = digests(made.parents)
        if all(made_from.get(role) == ref.sha256 for role, ref in (parents or {}).items()) and all(
            made.metadata.get(name) == value for name, value in (metadata or {}).items()
        ):
            return found
        self.discard(kind, name)
        return None

    def parents(self, kind: str, name: str) -> Mapping[str, ArtifactRef]:
        """Return what a record that ``find`` or ``put`` has returned is made from."""
        return self._made[kind, name][1].parents

    def discard(self, kind: str, name: str) -> None:
        """Drop a record, if there is one."""
        self._made.pop((kind, name), None)
        self.store.discard(kind, name)

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
            self.lineage,
            parents={**self.lineage.parents, **(parents or {})},
            metadata={**self.lineage.metadata, **(metadata or {})},
        )
        ref = self.store.put(kind, name, tables=dict(tables), lineage=lineage)
        self._made[kind, name] = ref, lineage
        self._frames |= {(ref.sha256, table): frame for table, frame in tables.items()}
        return ref

    def replace(
        self,
        kind: str,
        name: str,
        tables: Mapping[str, pl.DataFrame],
        parents: Mapping[str, ArtifactRef],
    ) -> ArtifactRef:
        """``put``, in place of what an earlier attempt left."""
        self.discard(kind, name)
        return self.put(kind, name, tables, parents)

    def table(self, ref: ArtifactRef, name: str) -> pl.DataFrame:
        """Return a table of a record: as this process wrote it, or read from the store, once."""
        if (ref.sha256, name) not in self._frames:
            self._frames[ref.sha256, name] = self.store.table(ref, name)
        return self._frames[ref.sha256, name]

    def drawn(self, groups: Groups) -> pl.DataFrame:
        """Return the frame (``batch``) of every group of all rounds."""
        return drawn(self.table, groups.rounds)

    def trained(self, groups: Groups, advantages: ArtifactRef) -> pl.DataFrame:
        """Return the frame of the groups that train, with their advantages."""
        kept = of_prompts(self.drawn(groups), groups.kept)
        return beside(kept, self.table(advantages, "advantages"))


def digests(parents: Mapping[str, ArtifactRef]) -> dict[str, str]:
    """Return the content of each parent, by role."""
    return {role: parent.sha256 for role, parent in parents.items()}

"""What each iteration turned which weights into, and from what: the records of lineage.

``iterations/<key>/<iteration>`` holds one row, the digest of each tensor, and names as parents all
rollouts, rewards and advantages that its update learnt from and the record before it. Checkpoints
are pruned and these are not, so the weights of every iteration can be followed to the trajectories
behind them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import polars as pl

from rlcore.rl.state import LoopState
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.weights.digest import tensor_identity
from schemas.artifacts import ArtifactRef

KIND = "iterations"
PREVIOUS = "previous"  # the role of the record before


class History:
    """Writes the records of the run ``key``; an equal one of an earlier attempt stays."""

    __slots__ = ("_key", "_lineage", "_log", "_store")

    def __init__(
        self, store: ArtifactStore, key: str, lineage: Lineage, log: Callable[[str], None]
    ) -> None:
        self._store, self._key, self._lineage, self._log = store, key, lineage, log

    def begin(
        self,
        state: LoopState,
        tensors: Mapping[str, str],
        parents: Mapping[str, ArtifactRef] | None = None,
    ) -> None:
        """Record the weights that RL begins with; its parents are those of the run, and
        ``parents``: the record that a fork goes on from.

        ``tensors``: the ``tensor_digests`` of the weights.
        """
        behind = {**self._lineage.parents, **(parents or {})}
        self._record(state, state.digest, tensors, behind)

    def extend(self, before: str, state: LoopState, tensors: Mapping[str, str]) -> None:
        """Record the iteration that ``state`` is the state after; ``before``: digest of the weights
        that it sampled with, ``tensors``: the ``tensor_digests`` of those after it."""
        learnt_from = self._store.find("advantages", self._name(state.iteration))
        assert learnt_from is not None, "an update learns from recorded advantages"
        drawn = {
            role: parent
            for role, parent in self._store.manifest(learnt_from).parents.items()
            if parent.kind in ("rollouts", "rewards")
        }
        parents = {"advantages": learnt_from, **drawn, **self.parent(state.iteration - 1, PREVIOUS)}
        self._record(state, before, tensors, parents)

    def parent(self, iteration: int, role: str) -> dict[str, ArtifactRef]:
        """Return the record of ``iteration`` as a parent with this role, none where there is no
        record: of an iteration that an earlier version of this program ran, or a damaged one."""
        found = self._store.find_or_discard(KIND, self._name(iteration), self._log)
        return {} if found is None else {role: found}

    def _record(
        self,
        state: LoopState,
        before: str,
        tensors: Mapping[str, str],
        parents: Mapping[str, ArtifactRef],
    ) -> None:
        row = pl.DataFrame(
            {
                "iteration": [state.iteration],
                "version": [state.version],
                "digest_before": [before],
                "digest_after": [state.digest],
                "cursor": [state.cursor],
            }
        )
        weights = pl.DataFrame(
            {
                "tensor": list(tensors),
                "digest": [tensor_identity(digest) for digest in tensors.values()],
            },
            schema={"tensor": pl.String, "digest": pl.String},
        )
        name = self._name(state.iteration)
        for found in self.parent(state.iteration, "").values():
            same_parents = _digests(self._store.manifest(found).parents) == _digests(parents)
            if same_parents and self._store.table(found, KIND).equals(row):
                return
            self._store.discard(KIND, name)
        lineage = replace(self._lineage, parents=parents)
        tables = {KIND: row, "weights": weights}
        self._store.put(KIND, name, tables=tables, lineage=lineage)

    def _name(self, iteration: int) -> str:
        return f"{self._key}/{iteration:06d}"


def _digests(parents: Mapping[str, ArtifactRef]) -> dict[str, str]:
    return {role: parent.sha256 for role, parent in parents.items()}

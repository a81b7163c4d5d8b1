"""What each iteration turned which weights into, and from what: the records of lineage.

``iterations/<key>/<iteration>`` holds one row, the digest of each tensor, and names as parents all
rollouts, rewards and advantages that its update learnt from and the record before it. Checkpoints
are pruned and these are not, so the weights of every iteration can be followed to the trajectories
behind them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import polars as pl

from rlcore.rl.records import Records, digests
from rlcore.rl.state import LoopState
from rlcore.weights.digest import tensor_identity
from schemas.artifacts import ArtifactRef

KIND = "iterations"
PREVIOUS = "previous"  # the role of the record before


@dataclass(frozen=True, slots=True)
class History:
    """Writes the records of a run; an equal one of an earlier attempt stays."""

    records: Records

    def begin(
        self, state: LoopState, tensors: Mapping[str, str], parents: Mapping[str, ArtifactRef]
    ) -> None:
        """Record the weights that RL begins with; its parents are those of the run, and
        ``parents``: the record that a fork goes on from.

        ``tensors``: the ``tensor_digests`` of the weights.
        """
        behind = {**self.records.lineage.parents, **parents}
        self._record(state, state.digest, tensors, behind)

    def extend(self, before: str, state: LoopState, tensors: Mapping[str, str]) -> None:
        """Record the iteration that ``state`` is the state after; ``before``: digest of the weights
        that it sampled with, ``tensors``: the ``tensor_digests`` of those after it."""
        name = self.records.name(state.iteration)
        learnt_from = self.records.find("advantages", name)
        assert learnt_from is not None, "an update learns from recorded advantages"
        drawn = {
            role: parent
            for role, parent in self.records.parents("advantages", name).items()
            if parent.kind in ("rollouts", "rewards")
        }
        parents = {"advantages": learnt_from, **drawn, **self.parent(state.iteration - 1, PREVIOUS)}
        self._record(state, before, tensors, parents)

    def parent(self, iteration: int, role: str) -> dict[str, ArtifactRef]:
        """Return the record of ``iteration`` as a parent with this role, none where there is no
        record: of an iteration that an earlier version of this program ran, or a damaged one."""
        found = self.records.find(KIND, self.records.name(iteration))
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
        records, name = self.records, self.records.name(state.iteration)
        if (found := records.find(KIND, name)) is not None:
            same_parents = digests(records.parents(KIND, name)) == digests(parents)
            if same_parents and records.store.table(found, KIND).equals(row):
                return
            records.discard(KIND, name)
        lineage = replace(records.lineage, parents=parents)
        tables = {KIND: row, "weights": weights}
        records.store.put(KIND, name, tables=tables, lineage=lineage)

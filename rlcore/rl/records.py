"""What an RL run records per iteration (rollouts, rewards, advantages, which weights it made
from which), each an artifact, and how it is read back.

``iterations/<key>/<iteration>`` holds one row, the digest of each tensor, and names as parents all
rollouts, rewards and advantages that its update learnt from and the record before it. Checkpoints
are pruned and these are not, so the weights of every iteration can be followed to the trajectories
behind them.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from rlcore.learner.checkpoints import KIND as CHECKPOINT
from rlcore.models.weight_digest import tensor_identity
from rlcore.results.provenance import ENGINE
from rlcore.rl.batch import beside, drawn, of_prompts, rounds_of
from rlcore.rl.groups import DrawnGroups
from rlcore.rl.state import LoopState
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.checks import ArtifactError
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef, Manifest
from schemas.errors import UserError

# Metadata of advantages: tokens per pass of the learners that scored them and trained on them.
PACKED_FOR = "packed_for"


KIND = "iterations"
PREVIOUS = "previous"  # the role of the record before


@dataclass(frozen=True, slots=True)
class RunRecords:
    """Writes records below ``key``; one that an earlier attempt left is found again.

    What this process has written or found in the iteration under way it keeps, so that a phase has
    from memory what the one before it recorded. ``fence`` is entered to write or drop a record, and
    raises where that may be no more.
    """

    store: ArtifactStore
    key: str
    lineage: Lineage
    log: Callable[[str], None]
    fence: Callable[[], AbstractContextManager[None]] = nullcontext
    _made: dict[tuple[str, str], tuple[ArtifactRef, Lineage | Manifest]] = field(
        default_factory=dict, init=False
    )  # by kind and name
    _frames: dict[tuple[str, str], pl.DataFrame] = field(
        default_factory=dict, init=False
    )  # by content and table

    def forget(self) -> None:
        """Let go of what the iteration that ends has kept."""
        self._made.clear()
        self._frames.clear()

    def name(self, iteration: int, suffix: str = "") -> str:
        """Return the key of an iteration's record; ``suffix`` distinguishes generation rounds."""
        return f"{self.key}/{iteration:06d}{suffix}"

    def find(
        self,
        kind: str,
        name: str,
        parents: Mapping[str, ArtifactRef] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ArtifactRef | None:
        """Return what was recorded from the same ``parents`` with the same ``metadata``."""
        if (kind, name) not in self._made:
            found = self.store.find_or_discard(kind, name, self.log)
            if found is None:
                return None
            self._made[kind, name] = found, self.store.manifest(found)
        found, made = self._made[kind, name]
        # By content: a record stays when its parents were written again with equal bytes.
        is_same = digests(parents or {}).items() <= digests(made.parents).items()
        known = all(made.metadata.get(name) == value for name, value in (metadata or {}).items())
        return found if is_same and known else None

    def put(
        self,
        kind: str,
        name: str,
        tables: Mapping[str, pl.DataFrame],
        parents: Mapping[str, ArtifactRef] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ArtifactRef:
        """Write ``tables`` as an artifact made from ``parents`` and the run's own, in place of what
        an earlier attempt left; ``metadata``: JSON values."""
        lineage = replace(
            self.lineage,
            parents={**self.lineage.parents, **(parents or {})},
            metadata={**self.lineage.metadata, **(metadata or {})},
        )
        return self._replace(kind, name, tables, lineage)

    def drawn(self, groups: DrawnGroups) -> pl.DataFrame:
        """Return the frame (``batch``) of every group of all rounds."""
        return drawn(self.table, groups.rounds)

    def trained(self, groups: DrawnGroups, advantages: ArtifactRef) -> pl.DataFrame:
        """Return the frame of the groups that train, with their advantages."""
        kept = of_prompts(self.drawn(groups), groups.kept)
        return beside(kept, self.table(advantages, "advantages"))

    def table(self, ref: ArtifactRef, name: str) -> pl.DataFrame:
        """Return a table of a record: as this process wrote it, or read from the store, once."""
        if (ref.sha256, name) not in self._frames:
            self._frames[ref.sha256, name] = self.store.table(ref, name)
        return self._frames[ref.sha256, name]

    def begin(
        self, state: LoopState, tensors: Mapping[str, str], parents: Mapping[str, ArtifactRef]
    ) -> None:
        """Record the weights that RL begins with; its parents are those of the run, and
        ``parents``: the record that a fork continues from.

        ``tensors``: the ``tensor_digests`` of the weights.
        """
        behind = {**self.lineage.parents, **parents}
        self._record(state, state.digest, tensors, behind)

    def extend(self, before: str, state: LoopState, tensors: Mapping[str, str]) -> None:
        """Record the iteration that ``state`` is the state after; ``before``: digest of the weights
        that it updated, ``tensors``: the ``tensor_digests`` of those after it."""
        learnt_from = self.find("advantages", self.name(state.iteration))
        assert learnt_from is not None, "an update learns from recorded advantages"
        drawn = {
            role: parent
            for role, parent in self._made["advantages", learnt_from.key][1].parents.items()
            if parent.kind in ("rollouts", "rewards")
        }
        parents = {"advantages": learnt_from, **drawn, **self.parent(state.iteration - 1, PREVIOUS)}
        self._record(state, before, tensors, parents)
        self.forget()

    def parent(self, iteration: int, role: str) -> dict[str, ArtifactRef]:
        """Return the record of ``iteration`` as a parent with this role, none if it was damaged."""
        found = self.find(KIND, self.name(iteration))
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
        name = self.name(state.iteration)
        if (found := self.find(KIND, name)) is not None:
            same_parents = digests(self._made[KIND, name][1].parents) == digests(parents)
            if same_parents and self.store.table(found, KIND).equals(row):
                return  # rollouts of an earlier attempt may already name it
        tables = {KIND: row, "weights": weights}
        self._replace(KIND, name, tables, replace(self.lineage, parents=parents))

    def _replace(
        self, kind: str, name: str, tables: Mapping[str, pl.DataFrame], lineage: Lineage
    ) -> ArtifactRef:
        with self.fence():
            self.store.discard(kind, name)
            ref = self.store.put(kind, name, tables=tables, lineage=lineage)
        self._made[kind, name] = ref, lineage
        self._frames.update({(ref.sha256, table): frame for table, frame in tables.items()})
        return ref


def digests(parents: Mapping[str, ArtifactRef]) -> dict[str, str]:
    """Return the content of each parent, by role."""
    return {role: parent.sha256 for role, parent in parents.items()}


@dataclass(frozen=True, slots=True)
class Iteration:
    """A row of the table ``iterations`` and its artifact; ``weights``: digest of each tensor by
    name, after it."""

    number: int
    version: int
    digest_before: str
    digest_after: str
    weights: dict[str, str]
    manifest: Manifest


class RecordedIterations:
    """The iterations of the RL run whose records are below ``key``; ``name``: the run, in errors.

    ``total``: those it was to have; a longer run may have continued there. ``first``: what RL began
    with, 0 but for a fork; ``last``: the newest recorded one. Raises UserError where none is
    recorded.
    """

    def __init__(
        self, store: ArtifactReader, key: str, name: str, *, total: int | None = None
    ) -> None:
        self.store, self.key, self.name = store, key, name
        numbers = [int(k.rpartition("/")[2]) for k in store.keys(KIND, f"{key}/")]
        if not numbers:
            raise UserError(
                f"the run '{name}' has no iteration recorded in {store.root}: it has not come to"
                " its first"
            )
        self.first = min(numbers)
        self.last = max(numbers) if total is None else min(total, max(numbers))

    def iteration(self, number: int) -> Iteration:
        """Return iteration ``number``; ``first`` is what RL began with.

        Raises UserError for one that the run has not come to, ArtifactError for damage.
        """
        ref = self.ref(number)
        row = self.store.table(ref, "iterations").row(0, named=True)
        weights = self.store.table(ref, "weights")
        return Iteration(
            number=number,
            version=row["version"],
            digest_before=row["digest_before"],
            digest_after=row["digest_after"],
            weights=dict(weights.select("tensor", "digest").iter_rows()),
            manifest=self.store.manifest(ref),
        )

    def ref(self, number: int) -> ArtifactRef:
        """Return the record of iteration ``number``. Raises as ``iteration``."""
        ref = None
        if self.first <= number <= self.last:
            ref = self.store.find(KIND, f"{self.key}/{number:06d}")
        if ref is None:
            raise UserError(
                f"the run '{self.name}' has no iteration {number}; it has {self.first} to"
                f" {self.last}; name one of these"
            )
        return ref

    def checkpoints(self) -> list[int]:
        """Return the iterations that have a checkpoint, in order."""
        keys = self.store.keys(CHECKPOINT, f"{self.key}/")
        return sorted(int(key.rpartition("/")[2]) for key in keys)

    def advantages(self, number: int) -> tuple[ArtifactRef, pl.DataFrame]:
        """Return the advantages that iteration ``number`` trained on, a row per trajectory."""
        ref = self.iteration(number).manifest.parents["advantages"]
        return ref, self.store.table(ref, "advantages")

    def packed_for(self, number: int) -> int:
        """Return the tokens per pass of the learners of iteration ``number``."""
        ref = self.iteration(number).manifest.parents["advantages"]
        return self.store.manifest(ref).metadata[PACKED_FOR]

    def check_kept(self, first: int, last: int) -> None:
        """Raise PrunedArtifact, ArtifactError or UserError unless the store still has what the
        iterations ``first`` to ``last`` trained on."""
        for number in range(first, last + 1):
            for parent in self.store.manifest(self.ref(number)).parents.values():
                if parent.kind in ("rollouts", "rewards", "advantages"):
                    self.store.manifest(parent)

    def trained(self, number: int) -> pl.DataFrame:
        """Return the frame (``batch``) that iteration ``number`` trained on, in the order of its
        advantages."""
        ref, advantages = self.advantages(number)
        rounds = rounds_of(self.store.manifest(ref).parents)
        names = advantages.select("trajectory_id")
        return beside(beside(names, drawn(self.store.table, rounds)), advantages)


def recorded_engine(store: ArtifactReader, key: str) -> str | None:
    """Return the engine of the newest iteration recorded below ``key``; None where none says.

    Engines draw by different random numbers, so a run continues with the one it has. All that RL
    records names it; iterations are never pruned, and the first is there before a rollout.
    """
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

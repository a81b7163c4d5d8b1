"""What an RL run recorded of its iterations, read back: weights, batches, advantages."""

from dataclasses import dataclass

import polars as pl

from rlcore.learner.checkpoints import KIND as CHECKPOINT
from rlcore.rl.batch import beside, drawn, rounds_of
from rlcore.rl.history import KIND
from rlcore.rl.records import PACKED_FOR
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef, Manifest
from schemas.errors import UserError


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

    ``total``: those it was to have; a longer run may have gone on there. ``first``: what RL began
    with, 0 but for a fork; ``last``: the newest recorded one. Raises UserError where none is
    recorded.
    """

    def __init__(
        self, store: ArtifactReader, key: str, name: str, *, total: int | None = None
    ) -> None:
        self.store, self.key, self.name = store, key, name
        self._trained: dict[int, pl.DataFrame] = {}  # the last one that was asked for
        numbers = [int(k.rpartition("/")[2]) for k in store.keys(KIND, f"{key}/")]
        if not numbers:
            raise UserError(
                f"the run '{name}' has no iteration recorded in {store.root}: it has not come to"
                " its first, or an earlier version of this program made it"
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
        ref = self.store.find(KIND, self._at(number)) if self.first <= number <= self.last else None
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

    def packed_for(self, number: int) -> int | None:
        """Return the tokens per pass of the learners of iteration ``number``, None where an earlier
        version of this program ran it."""
        ref = self.iteration(number).manifest.parents["advantages"]
        return self.store.manifest(ref).metadata.get(PACKED_FOR)

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
        if number not in self._trained:
            ref, advantages = self.advantages(number)
            rounds = rounds_of(self.store.manifest(ref).parents)
            names = advantages.select("trajectory_id")
            frame = beside(beside(names, drawn(self.store.table, rounds)), advantages)
            self._trained = {number: frame}
        return self._trained[number]

    def _at(self, number: int) -> str:
        return f"{self.key}/{number:06d}"

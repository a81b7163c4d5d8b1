"""Checkpoints of the RL stage: a folder of training state per learner in a directory artifact, loop
state in its manifest."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from rlcore.learner.pool import LearnerPool
from rlcore.rl.state import LoopState
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.rl import CheckpointSection

KIND = "checkpoint"
Learners = Mapping[str, LearnerPool]  # by role: "actor" and, where there is one, "critic"


class Checkpoints:
    """Publishes, prunes and restores the checkpoints of one RL run."""

    def __init__(
        self, store: ArtifactStore, key: str, lineage: Lineage, section: CheckpointSection
    ) -> None:
        self._store, self._key, self._lineage, self._section = store, key, lineage, section

    def publish(self, learners: Learners, state: LoopState) -> ArtifactRef:
        """Save learners and loop state as of ``state.iteration``, then drop superseded ones."""
        with self._store.scratch() as scratch:
            for role, learner in learners.items():
                learner.save(str(scratch / role))
            ref = self._store.put(
                KIND,
                self._name(state.iteration),
                directory=scratch,
                lineage=replace(self._lineage, metadata={"state": state.to_json()}),
            )
        self._prune(state)
        return ref

    def restore(self, learners: Learners, *, log: Callable[[str], None]) -> LoopState | None:
        """Load the newest complete checkpoint; None when there is none.

        A damaged checkpoint is reported and dropped, and the one before it is used: nothing is lost
        but time.
        """
        for key in sorted(self._store.keys(KIND, f"{self._key}/"), reverse=True):
            ref = self._store.find_or_discard(KIND, key, log)
            if ref is None:
                continue
            self._load(learners, ref)
            state = LoopState(**self._store.manifest(ref).metadata["state"])
            log(f"continuing after iteration {state.iteration} (checkpoint {key})")
            return state
        return None

    def load(self, learners: Learners, iteration: int) -> None:
        """Load one kept checkpoint. Raises ArtifactError when it is gone or damaged."""
        ref = self._store.find(KIND, self._name(iteration))
        if ref is None:
            raise ArtifactError(
                f"checkpoint {self._name(iteration)} is missing from the store; rerun the RL stage"
            )
        self._load(learners, ref)

    def _load(self, learners: Learners, ref: ArtifactRef) -> None:
        directory = self._store.directory(ref)
        for role, learner in learners.items():
            learner.load(str(directory / role))

    def _prune(self, state: LoopState) -> None:
        """Keep the last ``keep_last`` and the best ``keep_best`` by validation accuracy."""
        iterations = sorted(
            int(key.rsplit("/", 1)[1]) for key in self._store.keys(KIND, f"{self._key}/")
        )
        keep = {*iterations[-self._section.keep_last :], *state.best(self._section.keep_best)}
        for iteration in iterations:
            if iteration not in keep:
                self._store.discard(KIND, self._name(iteration))

    def _name(self, iteration: int) -> str:
        return f"{self._key}/{iteration:06d}"

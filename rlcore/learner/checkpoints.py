"""Checkpoints of a stage that trains: the state to resume its learners from, one artifact each."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import polars as pl

from rlcore.learner.pool import LearnerPool
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef

KIND = "checkpoint"
Learners = Mapping[str, LearnerPool]  # by role, which names the folder: "actor", "critic"


class Checkpoints:
    """The checkpoints ``<key>/<step>`` of one stage run."""

    def __init__(self, store: ArtifactStore, key: str, lineage: Lineage) -> None:
        self._store, self._key, self._lineage = store, key, lineage

    def begin(
        self,
        step: int,
        learners: Learners,
        metadata: Mapping[str, Any],
        tables: Mapping[str, pl.DataFrame] | None = None,
        fence: AbstractContextManager[None] | None = None,
    ) -> Callable[[], ArtifactRef]:
        """Start to save ``learners`` after ``step`` steps; return the rest of it, for any thread to
        call once, which publishes the checkpoint, atomically.

        The learners write their state of now: whatever they are asked for next waits for that.
        ``metadata``: JSON values, in the manifest of ``newest`` beside those of the lineage.
        ``fence`` is entered once they have, or raises: nothing is stored then.
        """
        with ExitStack() as failed:
            scratch = failed.enter_context(self._store.scratch())
            saves = [learner.save(scratch / role) for role, learner in learners.items()]
            opened = failed.pop_all()

        def rest() -> ArtifactRef:
            with opened:
                for save in saves:
                    save.result()
                opened.enter_context(fence or nullcontext())
                return self._store.put(
                    KIND,
                    self._name(step),
                    tables=tables,
                    directory=scratch,
                    lineage=replace(self._lineage, metadata={**self._lineage.metadata, **metadata}),
                )

        return rest

    def newest(self, log: Callable[[str], None], *, last: int | None = None) -> ArtifactRef | None:
        """Return the newest complete checkpoint, not after step ``last``; None when there is none.

        A damaged one is reported and dropped, and the one before it is used, which costs only time.
        """
        steps = (step for step in reversed(self.steps()) if last is None or step <= last)
        refs = (self._store.find_or_discard(KIND, self._name(step), log) for step in steps)
        return next((ref for ref in refs if ref is not None), None)

    def at(self, step: int) -> ArtifactRef:
        """Return one kept checkpoint. Raises ArtifactError when it is missing or damaged."""
        ref = self._store.find(KIND, self._name(step))
        if ref is None:
            raise ArtifactError(
                f"checkpoint {self._name(step)} is missing from the store; rerun its stage"
            )
        return ref

    def load(self, ref: ArtifactRef, learners: Learners) -> None:
        """Restore ``learners`` to the state in a checkpoint."""
        directory = self._store.directory(ref)
        for role, learner in learners.items():
            learner.load(str(directory / role))

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in order."""
        keys = self._store.keys(KIND, f"{self._key}/")
        return sorted(int(key.rsplit("/", 1)[1]) for key in keys)

    def keep(self, kept: Collection[int]) -> None:
        """Delete all checkpoints except those of the steps ``kept`` and those that are being read,
        which a later call deletes."""
        superseded = [self._name(step) for step in self.steps() if step not in kept]
        read = self._store.being_read() if superseded else set()
        for name in superseded:
            if f"{KIND}/{name}" not in read:
                self._store.discard(KIND, name)

    def _name(self, step: int) -> str:
        return f"{self._key}/{step:06d}"

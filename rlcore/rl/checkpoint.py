"""Checkpoints of the RL stage: the learners' state in folders, the loop's in the manifest."""

from collections.abc import Callable

from rlcore.learner.checkpoints import Checkpoints, Learners
from rlcore.rl.state import LoopState
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.rl import RLSection


class RLCheckpoints:
    """Publishes, prunes and restores the checkpoints of one RL run."""

    def __init__(self, store: ArtifactStore, key: str, lineage: Lineage, rl: RLSection) -> None:
        self._checkpoints = Checkpoints(store, key, lineage)
        self._store, self._rl = store, rl

    def publish(self, learners: Learners, state: LoopState) -> None:
        """Save learners and loop state as of ``state.iteration``, then drop superseded ones: kept
        are the last ``keep_last`` and the best ``keep_best`` by validation accuracy, and those of a
        longer run that went on here."""
        self._checkpoints.publish(state.iteration, learners, {"state": state.to_json()})
        kept, steps = self._rl.checkpoint, self._checkpoints.steps()
        past = [step for step in steps if step <= state.iteration]
        longer = steps[len(past) :]
        first = past[:1] if self._rl.fork else []  # a replay of a fork starts there
        self._checkpoints.keep(
            {*first, *longer, *past[-kept.keep_last :], *state.best(kept.keep_best)}
        )

    def restore(self, learners: Learners, *, log: Callable[[str], None]) -> LoopState | None:
        """Load the newest complete checkpoint that is not beyond the run; None when there is
        none."""
        ref = self._checkpoints.newest(log, last=self._rl.iterations)
        if ref is None:
            return None
        self._checkpoints.load(ref, learners)
        state = LoopState(**self._store.manifest(ref).metadata["state"]).within(self._rl)
        log(f"continuing after iteration {state.iteration} (checkpoint {ref.key})")
        return state

    def load(self, learners: Learners, iteration: int) -> None:
        """Load one kept checkpoint. Raises ArtifactError when it is gone or damaged."""
        self._checkpoints.load(self._checkpoints.at(iteration), learners)

"""Checkpoints of the RL stage: the learners' state in folders, the loop's in the manifest.

One is written while the loop goes on with the next rollout. What a kill meanwhile leaves is what it
leaves between two checkpoints: records of iterations after the newest one, which a rerun finds.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock

from rlcore.learner.checkpoints import Checkpoints, Learners
from rlcore.rl.state import LoopState
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.rl import RLSection


class RLCheckpoints:
    """Publishes, prunes and restores the checkpoints of one RL run."""

    def __init__(self, store: ArtifactStore, key: str, lineage: Lineage, rl: RLSection) -> None:
        self._checkpoints = Checkpoints(store, key, lineage)
        self._store, self._rl = store, rl
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._written: Future[None] | None = None
        self._storing = Lock()
        self._abandoned = False

    @contextmanager
    def writing(self, log: Callable[[str], None]) -> Iterator[None]:
        """Let nothing be written after the context, which has the lease: the last checkpoint is
        waited for.

        Its error is raised, or logged where the context ends with another. A run that is being
        stopped waits for what is already on its way into the store alone, not for learners.
        """
        try:
            yield
        except Exception:
            try:
                self.settle()
            except Exception as error:  # noqa: BLE001  the one that ends the context is raised
                log(f"the last checkpoint was not written ({type(error).__name__}: {error})")
            raise
        except BaseException:  # a signal: Prefect's cancel, Ctrl-C
            with self._storing:
                self._abandoned = True
            raise
        self.settle()

    def publish(self, learners: Learners, state: LoopState) -> None:
        """Start to save learners and loop state as of ``state.iteration``, and then to drop
        superseded ones: kept are the last ``keep_last`` and the best ``keep_best`` by validation
        accuracy, and those of a longer run that went on here.

        One is written at a time. Raises the error of the one before.
        """
        self.settle()
        rest = self._checkpoints.begin(
            state.iteration, learners, {"state": state.to_json()}, fence=self._unless_abandoned()
        )
        self._written = self._thread.submit(self._publish, rest, state)

    def settle(self, *, wait: bool = True) -> None:
        """Return once what was started is written. Raises the error that it ended with.

        Without ``wait``, return at once where it is not over yet.
        """
        if self._written is not None and (wait or self._written.done()):
            written, self._written = self._written, None
            written.result()

    @contextmanager
    def _unless_abandoned(self) -> Iterator[None]:
        with self._storing:
            if self._abandoned:
                raise ArtifactError("the run was stopped before its last checkpoint was stored")
            yield

    def _publish(self, rest: Callable[[], ArtifactRef], state: LoopState) -> None:
        rest()
        kept, steps = self._rl.checkpoint, self._checkpoints.steps()
        past = [step for step in steps if step <= state.iteration]
        longer = steps[len(past) :]
        first = past[:1] if self._rl.fork else []  # a replay of a fork starts there
        with self._unless_abandoned():
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
        """Load one kept checkpoint. Raises ArtifactError when it is gone or damaged, and the error
        that writing one has ended with."""
        self.settle()  # it may be the one that is being written
        self._checkpoints.load(self._checkpoints.at(iteration), learners)

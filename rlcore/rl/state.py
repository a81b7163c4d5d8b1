"""What the loop must remember between iterations, and the checkpoint in whose manifest it
travels.

One is written while the loop continues with the next rollout. What a kill meanwhile leaves is what
it leaves between two checkpoints: records of iterations after the newest one, which a rerun finds.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import inf
from threading import Lock
from typing import Any

from rlcore.algorithms.kl import adaptive_coef
from rlcore.learner.checkpoints import Checkpoints, Learners
from rlcore.models.weight_digest import WeightStamp
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from schemas.algorithm import KL
from schemas.artifacts import ArtifactRef
from schemas.rl import RLSection


@dataclass(frozen=True, slots=True)
class Draw:
    """What the rollouts of an iteration follow from.

    ``cursor``: place in the prompt stream. ``sampler``: the iteration after which the policy that
    samples stood, and its ``stamp``. ``kl_coef``: as in ``LoopState``.
    """

    iteration: int
    cursor: int
    sampler: int
    stamp: WeightStamp
    kl_coef: float | None = None


@dataclass(frozen=True, slots=True)
class LoopState:
    """The state after ``iteration`` complete iterations.

    ``cursor`` counts prompts taken from the stream; ``version`` and ``digest`` name the policy's
    weights (a critic's version is ``iteration``: it learns in every one); ``accuracies`` maps
    validated iterations (as text, for JSON) to greedy accuracy, a fraction; ``streak`` counts
    validations in a row at or above ``rl.validation.stop_at``; ``kl_coef`` is the coefficient that
    the next iteration takes KL from the reward with, None where it does not. ``behind``: version
    and digest after each of the last ``rl.rollout.max_staleness`` iterations before, as many as
    there are, oldest first. ``averaged``: as ``accuracies``, of the average of the weights.
    """

    iteration: int = 0
    cursor: int = 0
    version: int = 0
    digest: str = ""
    accuracies: dict[str, float] | None = None
    streak: int = 0
    kl_coef: float | None = None
    behind: tuple[tuple[int, str], ...] = ()
    averaged: dict[str, float] | None = None

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> "LoopState":
        """Return the state that ``to_json`` wrote."""
        behind = tuple((version, digest) for version, digest in values.get("behind", ()))
        return cls(**{**values, "behind": behind})

    @classmethod
    def initial(cls, rl: RLSection) -> "LoopState":
        """Return the state before the first iteration."""
        kl = rl.algorithm.kl
        return cls(kl_coef=kl.coef if kl.where == "reward" else None)

    @property
    def next_iteration(self) -> int:
        """The iteration under way, from 1."""
        return self.iteration + 1

    @property
    def draw(self) -> Draw:
        """What the rollouts of the iteration under way follow from: the policy that samples is the
        oldest of ``behind``, else the present one."""
        sampler = self.iteration - len(self.behind)
        version, digest = (*self.behind, (self.version, self.digest))[0]
        stamp = WeightStamp(version, digest)
        return Draw(self.next_iteration, self.cursor, sampler, stamp, self.kl_coef)

    def left_behind(self, staleness: int) -> tuple[tuple[int, str], ...]:
        """Return ``behind`` of the state after the next iteration."""
        past = (*self.behind, (self.version, self.digest))
        return past[max(0, len(past) - staleness) :]

    def trains_policy(self, rl: RLSection) -> bool:
        """Return whether the iteration under way trains the policy, or warms up the critic."""
        return rl.critic is None or self.iteration >= rl.critic.warmup_iterations

    def finished(self, rl: RLSection) -> bool:
        """Return whether all iterations are done or validation has held its target."""
        reached = rl.validation.stop_at is not None and self.streak >= rl.validation.patience
        return reached or self.iteration >= rl.iterations

    def validated(self, accuracy: float, rl: RLSection) -> "LoopState":
        """Return the state after validating the current weights.

        While the critic warms up the policy does not change, and equal figures are no streak.
        """
        target = rl.validation.stop_at
        moved = rl.critic is None or self.iteration > rl.critic.warmup_iterations
        return replace(
            self,
            accuracies={**(self.accuracies or {}), str(self.iteration): accuracy},
            streak=self.streak + 1 if moved and target is not None and accuracy >= target else 0,
        )

    def takes_average(self, iteration: int) -> bool:
        """Return whether the average did better than the weights after ``iteration``."""
        figures, averaged = self.accuracies or {}, self.averaged or {}
        return averaged.get(str(iteration), -inf) > figures[str(iteration)]

    def within(self, rl: RLSection) -> "LoopState":
        """Return the state that a run of ``rl`` alone would have come to: without what a run of
        fewer iterations validated only because it ended there."""
        figures = {int(text): figure for text, figure in (self.accuracies or {}).items()}
        state = replace(self, accuracies=None, streak=0)
        for number in sorted(figures):
            due = validation_due(replace(self, iteration=number), rl)
            if due or number == min(figures):
                state = replace(state, iteration=number).validated(figures[number], rl)
        known = {n: a for n, a in (self.averaged or {}).items() if n in (state.accuracies or {})}
        return replace(state, iteration=self.iteration, averaged=known or None)

    def next_kl_coef(self, kl: KL, measured: float | None, num_sequences: int) -> float | None:
        """Return the coefficient after the iteration under way, which used the one before.

        ``measured``: its mean KL to the reference, nats per token, over ``num_sequences``.
        """
        if self.kl_coef is None or measured is None or kl.controller == "fixed":
            return self.kl_coef
        return adaptive_coef(
            self.kl_coef,
            measured,
            target=kl.target,
            num_sequences=num_sequences,
            horizon=kl.horizon,
        )

    def best(self, count: int = 1) -> list[int]:
        """Return the ``count`` best validated iterations, each by the better of weights and
        average, best first; ties go to the later one."""
        averaged = self.averaged or {}
        figures = {
            int(iteration): max(accuracy, averaged.get(iteration, -inf))
            for iteration, accuracy in (self.accuracies or {}).items()
        }
        return sorted(figures, key=lambda i: (figures[i], i), reverse=True)[:count]

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values; without ``behind`` and ``averaged`` where nothing is."""
        empty = {name for name in ("behind", "averaged") if not getattr(self, name)}
        return {name: value for name, value in asdict(self).items() if name not in empty}


def validation_due(state: LoopState, rl: RLSection) -> bool:
    """Return whether greedy validation follows iteration ``state.iteration``."""
    return state.iteration % rl.validation.every == 0 or state.iteration >= rl.iterations


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
                self.finish_write()
            except Exception as error:  # noqa: BLE001  the one that ends the context is raised
                log(f"the last checkpoint was not written ({type(error).__name__}: {error})")
            raise
        except BaseException:  # a signal: Prefect's cancel, Ctrl-C
            with self._storing:
                # Under the lock that a write into the store holds: it is not cut short, and no
                # other begins.
                self._abandoned = True
            raise
        self.finish_write()

    def publish(self, learners: Learners, state: LoopState) -> None:
        """Start to save learners and loop state as of ``state.iteration``, and then to drop
        superseded ones: kept are the last ``checkpoints_kept`` and the best ``keep_best`` by
        validation accuracy, also by what a run of more iterations would know, and those of a longer
        run that continued here.

        One is written at a time. Raises the error of the one before.
        """
        self.finish_write()
        rest = self._checkpoints.begin(
            state.iteration, learners, {"state": state.to_json()}, fence=self._unless_abandoned()
        )
        self._written = self._thread.submit(self._publish, rest, state)

    def finish_write(self, *, wait: bool = True) -> None:
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
        # Of a longer run that continued here, which alone may drop them.
        longer = steps[len(past) :]
        first = past[:1] if self._rl.fork else []  # a replay of a fork starts there
        # A run of more iterations leaves out what is validated only because this one ends here.
        more = self._rl.model_copy(update={"iterations": self._rl.iterations + 1})
        best = {*state.best(kept.keep_best), *state.within(more).best(kept.keep_best)}
        with self._unless_abandoned():
            self._checkpoints.keep({*first, *longer, *past[-self._rl.checkpoints_kept :], *best})

    def restore(self, learners: Learners, *, log: Callable[[str], None]) -> LoopState | None:
        """Load the newest complete checkpoint that is not beyond the run; None if there is none."""
        ref = self._checkpoints.newest(log, last=self._rl.iterations)
        if ref is None:
            return None
        self._checkpoints.load(ref, learners)
        # It may be of a shorter run, which validated its last iteration out of schedule.
        state = LoopState.of_json(self._store.manifest(ref).metadata["state"]).within(self._rl)
        log(f"continuing after iteration {state.iteration} (checkpoint {ref.key})")
        return state

    def load(self, learners: Learners, iteration: int) -> None:
        """Load one kept checkpoint. Raises ArtifactError when it is gone or damaged, and the error
        that writing one has ended with."""
        self.finish_write()  # it may be the one that is being written
        self._checkpoints.load(self._checkpoints.at(iteration), learners)

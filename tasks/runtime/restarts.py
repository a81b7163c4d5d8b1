"""A stage whose workers die or hang goes on in new ones, within its run.

The body of the stage is called again and continues at its newest checkpoint, as it does in a rerun
after a kill, so that its result is the same. What is an error of the user, or was raised by a call
itself, is none of this and passes at once. To add another reason to begin again, with a remedy of
its own: a function in ``CAUSES``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic

from prefect.logging import get_run_logger

from rlcore.cluster.types import WorkerDied, WorkerError, WorkerHung, WorkerTimeout
from rlcore.diagnostics.memory import ran_out
from rlcore.learner.checkpoints import Checkpoints
from rlcore.results.restarts import RestartRecord, record_restart, restarts_of
from schemas.artifacts import ArtifactRef
from tasks.runtime.stage_run import StageRun, flow_run_id

STEP_S = "timing_s/step"  # metric of an RL iteration


@dataclass(frozen=True, slots=True)
class Restart:
    """Why a stage is begun again, in one line, and what is different then."""

    cause: str
    remedy: str


def lost_worker(error: Exception) -> Restart | None:
    """Return the restart for a worker, or Ray itself, that died, hangs or does not answer.

    None where memory ran out: new workers would run out of it again.
    """
    if not isinstance(error, WorkerError) or ran_out(error):
        return None
    return Restart(_first_line(error), "new workers")


CAUSES: tuple[Callable[[Exception], Restart | None], ...] = (lost_worker,)


class Restarts:
    """Calls the body of one stage until it returns: ``Restarts(run).made(body)``.

    At most ``hardware.restarts`` calls in a row begin without a checkpoint that the one before
    them did not have: a run whose engine dies every hour goes on, and one whose engine dies at
    every start ends.
    """

    def __init__(self, run: StageRun) -> None:
        self._run, self._limit = run, run.recipe.hardware.restarts
        self._in_vain = 0
        self._furthest = self._checkpoint()
        self._done: int | None = None  # the last step that was reported
        self._began = self._done_at = monotonic()
        self._step_s = 0.0
        self._open: RestartRecord | None = None  # the restart that has not come as far again

    def made(self, body: Callable[[StageRun], ArtifactRef]) -> ArtifactRef:
        """Return what ``body`` does.

        Raises what it raises; a WorkerError says so where restarts were of no use.
        """
        with self._run.tracker.told(self._report):
            while True:
                self._began = monotonic()
                try:
                    ref = body(self._run)
                except Exception as error:
                    restart = self._restart(error)
                    if restart is None:
                        raise
                else:
                    now = monotonic()
                    self._again(now, now - self._began if self._done is None else 0.0)
                    return ref
                self._begin_again(restart)  # the error and all that it held are gone by now

    def _restart(self, error: Exception) -> Restart | None:
        """Return the restart that is to follow ``error``, if any. Raises it with a further word
        where restarts have been tried in vain."""
        restart = next((found for cause in CAUSES if (found := cause(error))), None)
        if restart is None or self._limit == 0:
            return None
        newest = self._checkpoint()
        if newest > self._furthest:
            self._furthest, self._in_vain = newest, 0
        if self._in_vain == self._limit:
            if isinstance(error, WorkerError):
                raise _used_up(error, self._limit) from error
            return None
        self._in_vain += 1
        return restart

    def _begin_again(self, restart: Restart) -> None:
        """Record and log ``restart``, and end the workers."""
        run, step = self._run, self._furthest
        if self._open is not None:  # it came to nothing, which counts to the next one's cost
            self._again(self._began, 0.0)
        number = 1 + len(restarts_of(run.store, flow_run_id(), run.stage))
        self._open = RestartRecord(
            flow_run_id=flow_run_id(),
            stage=run.stage,
            number=number,
            step=None if step < 0 else step,
            cause=restart.cause,
            remedy=restart.remedy,
            began=datetime.now(UTC).isoformat(),
            seconds=None,
        )
        record_restart(run.store, self._open, run.lineage())
        run.pipeline.refresh_page(at_once=True)
        where = "begins again" if step < 0 else f"goes on after step {step}"
        get_run_logger().warning(
            f"{run.stage} {where} with {restart.remedy} (restart {number}, {self._in_vain} of"
            f" {self._limit} without a new checkpoint): {restart.cause}"
        )
        run.workers.restart()

    def _report(self, step: int, metrics: Mapping[str, float]) -> None:
        """The stage has done ``step``, perhaps once more."""
        if self._done is not None and step <= self._done:
            return
        self._again(monotonic(), max(metrics.get(STEP_S, 0.0), self._step_s))
        self._done, self._step_s = step, metrics.get(STEP_S, 0.0)

    def _again(self, at: float, step_s: float) -> None:
        """The stage is further than ever ``at`` a time, ``step_s`` seconds of which it needed
        anyway."""
        if self._open is not None:
            seconds = max(0.0, at - self._done_at - step_s)
            record_restart(
                self._run.store, replace(self._open, seconds=seconds), self._run.lineage()
            )
            get_run_logger().info(
                f"restart {self._open.number} of {self._run.stage} cost {seconds:.0f} s"
            )
            self._open = None
            self._run.pipeline.refresh_page()
        self._done_at = at

    def _checkpoint(self) -> int:
        """Return the step of the newest complete checkpoint, -1 where there is none."""
        run = self._run
        steps = [-1]
        for key in {run.key, run.records}:
            steps += Checkpoints(run.store, key, run.lineage()).steps()
        return max(steps)


def _used_up(error: WorkerError, tried: int) -> WorkerError:
    # What a worker raised itself arrives as a class of Ray's, derived from this one too.
    kind = next(k for k in (WorkerDied, WorkerHung, WorkerTimeout, WorkerError) if _is(error, k))
    times = "restart" if tried == 1 else "restarts in a row"
    return kind(f"{error}; {tried} {times} brought no new checkpoint (hardware.restarts)")


def _is(error: WorkerError, kind: type[WorkerError]) -> bool:
    return isinstance(error, kind)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")

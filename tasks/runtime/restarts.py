"""A stage whose workers die or hang continues in new ones, within its run.

The body of the stage is called again and continues at its newest checkpoint, as it does in a rerun
after a kill, so that its result is the same. A learner that runs out of memory continues there with
half of ``micro_batch_tokens``, and a rerun may give learners other ranks than the checkpoint's:
both change results by rounding only, and lineage says so. What is an error of the user, or was
raised by a call itself, is none of this and passes at once.
"""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic

from prefect.logging import get_run_logger

from rlcore.cluster.types import WorkerDied, WorkerError, WorkerHung, WorkerTimeout, ran_out
from rlcore.learner.checkpoints import Checkpoints
from rlcore.learner.pool import LearnerOutOfMemory
from rlcore.plan.batches import smaller_passes
from rlcore.results.provenance import LAYOUT, MICRO_BATCH_TOKENS, RESHARDED, layout_text
from rlcore.results.stage_rows import RestartRecord, record_restart, restarts_of
from schemas.artifacts import ArtifactRef, Manifest
from tasks.runtime.earlier_runs import newest_checkpoint
from tasks.runtime.stage_run import StageRun, flow_run_id

STEP_S = "timing_s/step"  # metric of an RL iteration


@dataclass(frozen=True, slots=True)
class Restart:
    """Why a stage is begun again, in one line, and what is different then.

    ``micro_batch_tokens``: those of the learners from then on, None for as many as before.
    """

    cause: str
    remedy: str
    micro_batch_tokens: int | None = None


def restart_after(error: Exception, run: StageRun) -> Restart | None:
    """Return the restart for a worker, or Ray itself, that died, hangs or does not answer, and for
    a learner that ran out of memory. None for any other error, and where memory ran out and passes
    cannot be smaller: new workers would run out of it again."""
    if isinstance(error, WorkerError) and not ran_out(error):
        return Restart(_first_line(error), "new workers")
    half = smaller_passes(run.recipe) if isinstance(error, LearnerOutOfMemory) else None
    if half is None:
        return None
    before = run.recipe.hardware.learner.micro_batch_tokens
    setting = f"hardware.learner.micro_batch_tokens = {half} instead of {before}"
    return Restart(_first_line(error), setting, half)


class Restarts:
    """Calls the body of one stage until it returns: ``Restarts(run).made(body)``.

    At most ``hardware.restarts`` calls in a row begin without a checkpoint that the one before
    them did not have: a run whose engine dies every hour continues, and one whose engine dies at
    every start ends. What a learner was left with after it ran out of memory holds for the rest of
    the stage, in a rerun, too. ``run``: as the body is given it.
    """

    def __init__(self, run: StageRun) -> None:
        newest = _newest(run)
        self.run, self._limit = _within_memory(run, newest), run.recipe.hardware.restarts
        self.run, self._resharded = _with_other_ranks(self.run, newest)
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
        with self.run.tracker.told(self._report):
            if self._resharded is not None:
                self._record(self._resharded)
            while True:
                self._began = monotonic()
                self.run.workers.recipe = self.run.recipe
                try:
                    ref = body(self.run)
                except Exception as error:
                    restart = self._restart(error)
                    if restart is None:
                        raise
                    _release(error)
                else:
                    now = monotonic()
                    self._again(now, now - self._began if self._done is None else 0.0)
                    return ref
                self._begin_again(restart)

    def _restart(self, error: Exception) -> Restart | None:
        """Return the restart that is to follow ``error``, if any. Raises it with a further word
        where restarts have been tried in vain."""
        restart = restart_after(error, self.run)
        if restart is None or self._limit == 0:
            return None
        newest = self._checkpoint()
        if newest > self._furthest:
            self._furthest, self._in_vain = newest, 0
        if restart.micro_batch_tokens is not None:  # there are few halves
            return restart
        if self._in_vain == self._limit:
            if isinstance(error, WorkerError):
                raise _used_up(error, self._limit) from error
            return None
        self._in_vain += 1
        return restart

    def _begin_again(self, restart: Restart) -> None:
        """Record and log ``restart``, and end the workers."""
        if self._open is not None:  # it came to nothing, which counts to the next one's cost
            self._again(self._began, 0.0)
        self._open = self._record(restart)
        if restart.micro_batch_tokens is not None:
            self.run = self.run.within(restart.micro_batch_tokens)
        self.run.workers.restart()

    def _record(self, restart: Restart) -> RestartRecord:
        """Record, log and show ``restart``."""
        run, step = self.run, self._furthest
        row = RestartRecord(
            flow_run_id=flow_run_id(),
            stage=run.stage,
            number=1 + len(restarts_of(run.store, flow_run_id(), run.stage)),
            step=None if step < 0 else step,
            cause=restart.cause,
            remedy=restart.remedy,
            began=datetime.now(UTC).isoformat(),
        )
        record_restart(run.store, row, run.lineage())
        run.pipeline.refresh_page(at_once=True)
        where = "begins again" if step < 0 else f"continues after step {step}"
        get_run_logger().warning(
            f"{run.stage} {where} with {restart.remedy} (restart {row.number}, {self._in_vain} of"
            f" {self._limit} without a new checkpoint): {restart.cause}"
        )
        return row

    def _report(self, step: int, metrics: Mapping[str, float]) -> None:
        """The stage has done ``step``, perhaps once more."""
        if self._done is not None and step <= self._done:
            return
        self._again(monotonic(), max(metrics.get(STEP_S, 0.0), self._step_s))
        self._done, self._step_s = step, metrics.get(STEP_S, 0.0)

    def _again(self, at: float, step_s: float) -> None:
        """The stage is further than ever ``at`` a time, of which ``step_s`` seconds were due."""
        if self._open is not None:
            seconds = max(0.0, at - self._done_at - step_s)
            record_restart(self.run.store, replace(self._open, seconds=seconds), self.run.lineage())
            get_run_logger().info(
                f"restart {self._open.number} of {self.run.stage} cost {seconds:.0f} s"
            )
            self._open = None
            self.run.pipeline.refresh_page()
        self._done_at = at

    def _checkpoint(self) -> int:
        """Return the step of the newest complete checkpoint, -1 where there is none."""
        return max((step for step, _ in _checkpoints(self.run)), default=-1)


def _checkpoints(run: StageRun) -> list[tuple[int, str]]:
    """Return step and key of those that a body of ``run`` may continue with, in order."""
    return sorted(
        (step, key)
        for key in {run.key, run.records}
        for step in Checkpoints(run.store, key, run.lineage()).steps()
    )


def _newest(run: StageRun) -> Manifest | None:
    """Return the manifest of the newest whole checkpoint that a body of ``run`` may use."""
    log = get_run_logger().warning
    manifests = (
        newest_checkpoint(run.store, key, step, log) for step, key in _checkpoints(run)[::-1]
    )
    return next((manifest for manifest in manifests if manifest is not None), None)


def _with_other_ranks(run: StageRun, newest: Manifest | None) -> tuple[StageRun, Restart | None]:
    """Return ``run`` with what lineage says of the ranks that led to the checkpoint ``newest``, and
    what to record where those of the recipe are others."""
    before = None if newest is None else newest.metadata.get(LAYOUT)
    if newest is None or before is None:
        return run, None
    changes = newest.metadata.get(RESHARDED, [])
    after = run.recipe.hardware.learner.layout(run.recipe.model.dtype)
    if before == after:
        return (run.noting({RESHARDED: changes}) if changes else run), None
    step = int(newest.key.rpartition("/")[2])
    run = run.noting({RESHARDED: [*changes, {"step": step, "before": before, "after": after}]})
    cause = f"hardware.learner has {layout_text(after)}, the checkpoint is of {layout_text(before)}"
    return run, Restart(cause, "its training state resharded")


def _within_memory(run: StageRun, newest: Manifest | None) -> StageRun:
    """Return ``run`` with passes as small as those that led to the checkpoint ``newest``, where
    memory had run out on the way and the recipe asks for as many tokens as then."""
    sizes = None if newest is None else newest.metadata.get(MICRO_BATCH_TOKENS)
    if sizes is None or sizes["recipe"] != run.recipe.hardware.learner.micro_batch_tokens:
        return run
    return run.within(sizes["used"])


def _release(error: BaseException | None) -> None:
    """Let go of what the frames behind ``error`` hold, such as the learner of this process and its
    activations: Prefect keeps the error of a task."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _used_up(error: WorkerError, tried: int) -> WorkerError:
    kind = next(
        k for k in (WorkerDied, WorkerHung, WorkerTimeout, WorkerError) if isinstance(error, k)
    )
    times = "restart" if tried == 1 else "restarts in a row"
    return kind(f"{error}; {tried} {times} brought no new checkpoint (hardware.restarts)")


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")

"""What a person sees of a running loop: a line in the run's log, and the live curves."""

from time import monotonic

from prefect.logging import get_run_logger

from rlcore.rl.state import LoopState
from rlcore.sft import Progress
from schemas.recipe import Recipe
from tasks.tracking import Tracker

SECONDS_BETWEEN_LINES = 5.0


class IterationReport:
    """Logs each RL iteration in one line and sends its metrics to the tracker."""

    __slots__ = ("_began", "_first", "_total", "_tracker")

    def __init__(self, recipe: Recipe, tracker: Tracker) -> None:
        self._tracker = tracker
        self._total = recipe.rl.iterations
        self._began = monotonic()
        self._first: int | None = None

    def __call__(self, state: LoopState, metrics: dict[str, float]) -> None:
        """Report the iteration that ``state`` closes."""
        if self._first is None:
            self._first = state.iteration - 1
            self._began = monotonic() - metrics["timing_s/step"]
        per_iteration = (monotonic() - self._began) / (state.iteration - self._first)
        left = (self._total - state.iteration) * per_iteration
        validated = metrics.get("val/accuracy", metrics.get("val/score"))
        validation = "" if validated is None else f"  validation {validated:.3f}"
        get_run_logger().info(
            f"iteration {state.iteration}/{self._total}"
            f"  reward {metrics.get('critic/score/mean', float('nan')):.3f}{validation}"
            f"  {metrics['timing_s/step']:.2f} s"
            f"  {metrics['perf/throughput']:,.0f} tokens/s"
            f"  at most {_clock(left)} left"
        )
        self._tracker.log(metrics, step=state.iteration, stage="rl")


class SFTReport:
    """Logs SFT progress every few seconds and sends its metrics to the tracker."""

    __slots__ = ("_last", "_tracker")

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        """Report one optimizer step."""
        self._tracker.log(progress.metrics, step=progress.step, stage="sft")
        if monotonic() - self._last < SECONDS_BETWEEN_LINES and progress.step < progress.total:
            return
        self._last = monotonic()
        get_run_logger().info(
            f"SFT step {progress.step}/{progress.total}"
            f"  loss {progress.metrics['sft/loss']:.3f}"
            f"  {progress.tokens_per_s:,.0f} tokens/s  {_clock(progress.eta_s)} left"
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes}:{rest:02d}"

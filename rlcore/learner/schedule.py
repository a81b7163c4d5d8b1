"""Learning rate as a pure function of the step."""

from math import cos, pi

from schemas.optimizer import Optimizer


def optimizer_lr(optimizer: Optimizer, step: int, total_steps: int) -> float:
    """Return the rate of optimizer step ``step`` (from 0) of ``total_steps``, above 0 at every one.

    It is the usual curve (HF's ``get_cosine_schedule_with_warmup`` and the like) of ``total_steps``
    + 1 ticks, read at tick t = step + 1. That curve is 0 at tick 0, and 0 again at its end where
    ``min_lr_ratio`` is 0; both are outside the run, so that even a run of a single step learns.

    Warm-up: lr x t / warm-up, so its last step is at the peak; one that is longer than the run is
    cut to the run. Afterwards the rate falls towards ``min_lr_ratio`` x lr, which it would reach
    one step after the last step:

    - constant: never
    - linear, cosine (half a period): over all steps after warm-up
    - wsd: linear over the last ``decay_fraction`` of ``total_steps``, at the peak before

    Steps past the end keep the last rate.
    """
    schedule, peak = optimizer.schedule, optimizer.lr
    warmup = schedule.warmup_steps
    if warmup is None:
        warmup = int(schedule.warmup_ratio * total_steps)
    start = warmup = min(warmup, total_steps)
    tick, end = min(step, total_steps - 1) + 1, total_steps + 1
    if tick <= warmup:
        return peak * tick / warmup
    if schedule.kind == "constant":
        return peak
    if schedule.kind == "wsd":
        decay = max(1, round(schedule.decay_fraction * total_steps))
        start = max(warmup, total_steps - decay)
    progress = max(0, tick - start) / (end - start)
    shape = 0.5 * (1.0 + cos(pi * progress)) if schedule.kind == "cosine" else 1.0 - progress
    return peak * (schedule.min_lr_ratio + (1.0 - schedule.min_lr_ratio) * shape)

"""Learning rate as a pure function of the step; the caller defines the step."""

from math import cos, pi

from schemas.optimizer import Optimizer


def learning_rate(
    step: int,
    *,
    peak: float,
    kind: str = "constant",
    total_steps: int,
    warmup_steps: int = 0,
    min_ratio: float = 0.0,
    decay_fraction: float = 0.1,
) -> float:
    """Return the rate of ``step`` (from 0) of ``total_steps``, above 0 at every one of them.

    It is the usual curve (HF's ``get_cosine_schedule_with_warmup`` and the like) of ``total_steps``
    + 1 ticks, read at tick t = step + 1. That curve is 0 at tick 0, and 0 again at its end where
    ``min_ratio`` is 0; both are outside the run, so that even a run of a single step learns.

    Warm-up: peak x t / warmup_steps, so step ``warmup_steps`` - 1 is at the peak. Afterwards the
    rate falls towards ``min_ratio`` x peak, which it would reach one step after the last step:

    - constant: never
    - linear, cosine (half a period): over all steps after warm-up
    - wsd: linear over the last ``decay_fraction`` of ``total_steps``, at the peak before

    Steps past the end keep the last rate. Counting optimizer steps or rollout steps gives different
    curves: the caller documents which it passes. A warm-up is no longer than the run.
    """
    tick, end = min(step, total_steps - 1) + 1, total_steps + 1
    if tick <= warmup_steps:
        return peak * tick / warmup_steps
    if kind == "constant":
        return peak
    start = warmup_steps
    if kind == "wsd":
        start = max(warmup_steps, total_steps - max(1, round(decay_fraction * total_steps)))
    progress = max(0, tick - start) / (end - start)
    shape = 0.5 * (1.0 + cos(pi * progress)) if kind == "cosine" else 1.0 - progress
    return peak * (min_ratio + (1.0 - min_ratio) * shape)


def optimizer_lr(optimizer: Optimizer, step: int, total_steps: int) -> float:
    """Return the rate of optimizer step ``step`` (from 0) of ``total_steps``; it ticks per step.

    A warm-up longer than the run is cut to the run.
    """
    schedule = optimizer.schedule
    warmup = schedule.warmup_steps
    if warmup is None:
        warmup = int(schedule.warmup_ratio * total_steps)
    return learning_rate(
        step,
        peak=optimizer.lr,
        kind=schedule.kind,
        total_steps=total_steps,
        warmup_steps=min(warmup, total_steps),
        min_ratio=schedule.min_lr_ratio,
        decay_fraction=schedule.decay_fraction,
    )

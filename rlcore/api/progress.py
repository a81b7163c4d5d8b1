"""What a training call shows while it runs (a bar with reward and tokens/s, on standard error),
and the curves that it returns."""

from collections.abc import Mapping
from math import nan
from time import monotonic
from typing import Self

import polars as pl
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

# Curve -> metric of the loop (verl's name). The loop leaves out what is not defined.
CURVES = {
    "accuracy": "critic/accuracy",
    "average_reward": "critic/score/mean",
    "policy_loss": "actor/pg_loss",
    "value_loss": "critic/vf_loss",
    "explained_variance": "critic/vf_explained_var",
    "positive_lm_loss": "actor/positive_nll",
    "filtered_ratio": "train/filtered_ratio",
    "kl": "actor/ppo_kl",
    "reference_kl": "actor/ref_kl",
    "entropy": "actor/entropy",
    "clip_fraction": "actor/pg_clipfrac",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "response_length": "response_length/mean",
    "error_fraction": "reward/error_fraction",
    "timeout_fraction": "reward/timeout_fraction",
}


def curves(metrics: pl.DataFrame) -> dict[str, list[float]]:
    """Return ``CURVES`` of a run's Metrics table; every list is as long as its iterations (from 1).

    NaN where a number is not defined: value_loss and explained_variance without a critic,
    reference_kl without a reference, what belongs to the policy during value warm-up or where an
    update makes no step, explained_variance of constant returns, average_reward when no row could
    be scored. filtered_ratio is 0 without dynamic sampling.
    """
    steps = sorted(set(metrics["step"]) - {0})  # 0: the first validation
    rows = metrics.select("step", "name", "value").iter_rows()
    known = {(step, name): value for step, name, value in rows if value is not None}
    return {
        curve: [
            float(known.get((step, metric), 0.0 if curve == "filtered_ratio" else nan))
            for step in steps
        ]
        for curve, metric in CURVES.items()
    }


LINE_EVERY_S = 5.0  # where standard error is no terminal


class TrainingBar:
    """The bar of one run of ``total`` iterations; a line every few seconds where nothing can be
    redrawn. Use as a context manager."""

    def __init__(self, title: str, total: int, *, shown: bool, console: Console | None = None):
        self._title, self._total = title, total
        self._console = console or Console(stderr=True, soft_wrap=True)
        self._lines = shown and not (self._console.is_terminal or self._console.is_jupyter)
        self._shown_s = float("-inf")
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not shown or self._lines,
        )
        self._task = self._bar.add_task(title, total=total, figures="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()

    def show(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Show the figures of an iteration (from 1), whose ``metrics`` have verl's names."""
        forms = {
            "critic/score/mean": "reward {:.3f}",
            "perf/total_tokens_per_s": "{:,.0f} tokens/s",
        }
        shown = [form.format(metrics[name]) for name, form in forms.items() if name in metrics]
        figures = "  ".join(shown)
        self._bar.update(self._task, completed=iteration, figures=figures)
        if self._lines and (monotonic() - self._shown_s > LINE_EVERY_S or iteration == self._total):
            self._shown_s = monotonic()
            self._console.print(f"{self._title} {iteration}/{self._total}  {figures}")

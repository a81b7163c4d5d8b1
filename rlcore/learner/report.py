"""Metrics of a step: what is averaged, what is a maximum, what is counted."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepReport:
    """``means``: global means of the step; ``maxes``: global maxima; ``counts`` add over steps."""

    means: dict[str, float] = field(default_factory=dict)
    maxes: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    def flat(self) -> dict[str, float]:
        """All of them by name."""
        return self.means | self.maxes | self.counts


def over_ranks(reports: Sequence[StepReport]) -> StepReport:
    """Combine the ranks' shares of one step: means and counts were normalised globally and add."""
    return StepReport(
        _combine([report.means for report in reports], sum),
        _combine([report.maxes for report in reports], max),
        _combine([report.counts for report in reports], sum),
    )


def over_steps(reports: Sequence[StepReport]) -> StepReport:
    """Combine the steps of one update: means average, maxima stay maxima, counts add."""
    return StepReport(
        _combine([report.means for report in reports], lambda values: sum(values) / len(values)),
        _combine([report.maxes for report in reports], max),
        _combine([report.counts for report in reports], sum),
    )


def _combine(parts: Sequence[dict[str, float]], how) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: float(how([part[name] for part in parts if name in part])) for name in names}

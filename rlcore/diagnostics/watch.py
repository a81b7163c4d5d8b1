"""Runs the checks over the metric stream of an RL run and records each episode of a problem: it is
logged once it has lasted for a check's ``patience``, and again when it is over. A check with
``fatal_after`` ends the run once its problem has lasted that long.

The state is a function of the recipe and the stored metrics alone. A resumed run replays the
metrics tables without logging, and continues as if never interrupted. A run that a check ended and
that is started again checks the next iteration with that history, and ends there unless the problem
is over.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Literal

import polars as pl

from rlcore.diagnostics.dead_updates import DEAD_UPDATE_CHECKS, STALL_CHECKS
from rlcore.diagnostics.measures import EXPLAINING
from rlcore.diagnostics.memory import MESSAGE, OUT_OF_MEMORY, ran_out, remedy
from rlcore.diagnostics.policy_checks import CRITIC_CHECKS, POLICY_CHECKS
from rlcore.diagnostics.reward_checks import RECIPE_CHECKS, REWARD_CHECKS
from rlcore.diagnostics.types import Check, Stream
from rlcore.rewards.unscored_rows import RewardFailureError, RewardTimeoutError
from rlcore.rl.groups import DynamicSamplingError
from rlcore.rl.guards import SamplerDriftError
from rlcore.store.tables import polars_schema
from schemas.errors import UserError
from schemas.recipe import Recipe

CHECKS = (
    RECIPE_CHECKS
    + REWARD_CHECKS
    + DEAD_UPDATE_CHECKS
    + POLICY_CHECKS
    + CRITIC_CHECKS
    + STALL_CHECKS
)
# Errors that end an iteration before it has metrics -> the checks that look out for them.
FORESEEN: dict[type[UserError], tuple[str, ...]] = {
    RewardTimeoutError: ("reward_timeouts",),
    RewardFailureError: ("reward_errors",),
    DynamicSamplingError: ("filtered_ratio",),
    SamplerDriftError: ("sampler_drift", "sampler_drift_on_average"),
}
CLEAR_AFTER = 5  # healthy iterations in a row that end an episode; fewer count as noise


class DiagnosticError(UserError):
    """A check found a problem that ends the run."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One episode of a problem: reported at iteration ``began`` and over at ``ended`` (None: it
    lasts).

    Iteration 0 is before the first: the recipe itself. ``value`` is what the check measured when it
    reported.
    """

    check: str
    severity: Literal["warning", "fatal"]
    began: int
    ended: int | None
    value: float | None
    message: str
    remedy: str

    @property
    def sentence(self) -> str:
        """What is wrong and how to fix it."""
        return f"{self.message} ({self.check}): {self.remedy}"


@dataclass(slots=True)
class _Watch:
    """The state of one check: iterations in a row with and without the problem, and the episode."""

    check: Check
    limit: float
    troubled: int = 0
    healthy: int = 0
    finding: Finding | None = None
    ended: list[Finding] = field(default_factory=list)

    def ask(self, stream: Stream) -> Finding | None:
        """Check this iteration; return the episode if it has just begun, ended or turned fatal."""
        check = self.check
        if not all(name in stream.now for name in check.reads):
            return None
        value = check.measure(stream) if check.measure else stream.now[check.reads[0]]
        if value is None or math.isnan(value):
            return None
        bad = value <= self.limit if check.below else value >= self.limit
        if not bad or check.quiet(stream):
            return self._recover(stream.iteration)
        self.troubled += 1
        self.healthy = 0
        known, severity = self.finding, "fatal" if self.fatal else "warning"
        if known is None and self.troubled < check.patience:
            return None
        if known is not None and (known.severity == "fatal" or severity == "warning"):
            return None
        began = stream.iteration if known is None else known.began
        words = self._words(value, stream)
        self.finding = Finding(check.name, severity, began, None, value, *words)
        return self.finding

    def _recover(self, iteration: int) -> Finding | None:
        self.troubled = 0
        self.healthy += 1
        if self.finding is None or self.healthy < CLEAR_AFTER:
            return None
        over = replace(self.finding, ended=iteration)
        self.ended.append(over)
        self.finding = None
        return over

    def _words(self, value: float, stream: Stream) -> tuple[str, str]:
        says, remedy = (
            part(stream) if callable(part) else part
            for part in (self.check.says, self.check.remedy)
        )
        words = says.format(
            value=value,
            threshold=self.limit,
            now=stream.now,
            last=stream.last,
            lasted=self.troubled,
        )
        if self.check.reads and "{threshold" not in says:  # a rule on the recipe measures nothing
            words += f" (threshold {self.limit:.3g})"
        return words, remedy

    @property
    def fatal(self) -> bool:
        """Whether the problem has lasted so long that the run ends."""
        return self.check.fatal_after is not None and self.troubled >= self.check.fatal_after


class Diagnostics:
    """Runs the checks that apply to a recipe, iteration by iteration.

    diagnostics = Diagnostics(recipe, log=print)
    diagnostics.replay(stage_metrics(store, key, last=0))      # when the run is resumed, too
    diagnostics.observe(1, metrics)
    """

    __slots__ = ("_log", "_reads", "_stream", "_watches")

    def __init__(self, recipe: Recipe, *, log: Callable[[str], None]) -> None:
        """``log`` takes a line per episode that begins or ends; the recipe is checked at once."""
        self._log = log
        self._stream = Stream(recipe)
        self._watches = [_Watch(c, c.limit(recipe)) for c in CHECKS if c.applies(recipe)]
        self._reads = {name for watch in self._watches for name in watch.check.reads} | EXPLAINING
        for watch in self._watches:
            if not watch.check.reads and (finding := watch.ask(self._stream)) is not None:
                log(finding.sentence)

    @property
    def findings(self) -> list[Finding]:
        """Every episode so far, by the iteration it was reported at."""
        found = [one for watch in self._watches for one in (*watch.ended, watch.finding) if one]
        return sorted(found, key=lambda finding: (finding.began, finding.check))

    def findings_until(self, error: BaseException, iteration: int) -> list[Finding]:
        """Return every episode of a run that ``error`` ended in ``iteration``; that of the check
        which looks out for such errors is fatal then, and has the words of the error."""
        kinds = [names for kind, names in FORESEEN.items() if isinstance(error, kind)]
        applying = [name for name, _ in self.checks if kinds and name in kinds[0]]
        findings = self.findings
        if not applying:
            return findings
        message, _, remedy = str(error).rpartition("; ")
        end = Finding(applying[0], "fatal", iteration, None, None, message, remedy)
        for place, found in enumerate(findings):
            if found.check == end.check and found.ended is None:
                findings[place] = replace(end, began=found.began, value=found.value)
                return findings
        return [*findings, end]

    @property
    def checks(self) -> list[tuple[str, float]]:
        """Name and threshold of each check that applies."""
        return [(watch.check.name, watch.limit) for watch in self._watches]

    def replay(self, metrics: pl.DataFrame) -> None:
        """Replay a Metrics table; log nothing, end no run. A null is a value not finite."""
        rows = metrics.filter(pl.col("name").is_in(self._reads))
        table = rows.sort("step", maintain_order=True).select("step", "name", "value").iter_rows()
        for step, values in groupby(table, key=itemgetter(0)):
            known = {name: math.nan if value is None else value for _, name, value in values}
            self._check(step, known)

    def observe(self, iteration: int, metrics: Mapping[str, float]) -> list[Finding]:
        """Check one iteration; log and return the episodes that begin or end with it.

        Raises DiagnosticError, in one sentence, when a check ends the run.
        """
        changed = self._check(iteration, metrics)
        for finding in changed:
            if finding.ended is None:
                self._log(f"iteration {iteration}: {finding.sentence}")
            else:
                self._log(
                    f"iteration {iteration}: {finding.check}, reported at iteration"
                    f" {finding.began}, is over"
                )
        for watch in self._watches:
            if watch.fatal and watch.finding is not None:
                raise DiagnosticError(
                    f"{watch.finding.message} ({watch.check.name}, {watch.troubled} iterations in a"
                    f" row up to iteration {iteration}): {watch.finding.remedy}"
                )
        return changed

    def _check(self, iteration: int, values: Mapping[str, float]) -> list[Finding]:
        self._stream.add(iteration, {n: v for n, v in values.items() if n in self._reads})
        watches = [watch for watch in self._watches if watch.check.reads]
        return [changed for watch in watches if (changed := watch.ask(self._stream)) is not None]


def diagnose(recipe: Recipe, metrics: pl.DataFrame) -> Diagnostics:
    """Return the diagnostics of a finished run, from its Metrics table."""
    diagnostics = Diagnostics(recipe, log=lambda line: None)
    diagnostics.replay(metrics)
    return diagnostics


def findings_frame(findings: Sequence[Finding]) -> pl.DataFrame:
    """Return findings as rows of the Diagnostics table."""
    rows = [asdict(finding) for finding in findings]
    return pl.DataFrame(rows, schema=polars_schema("diagnostics"), orient="row")


def of_error(error: BaseException, iteration: int, recipe: Recipe) -> Finding | None:
    """Return a finding for an error that ends RL, when its remedy is known: memory that ran out."""
    if isinstance(error, UserError) or not ran_out(error):
        return None
    return Finding(OUT_OF_MEMORY, "fatal", iteration, None, None, MESSAGE, remedy(recipe, "rl"))

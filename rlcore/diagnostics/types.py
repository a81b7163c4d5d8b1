"""The parts of a diagnostic check: the metrics so far, a rule over them, and what the records of
a run add to a finding."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rlcore.rl.unsolved_prompts import LEAST_ANSWERS, RECENT, RecentAnswers
from rlcore.store.artifacts import ArtifactStore
from schemas.errors import UserError
from schemas.recipe import Recipe

NAMED = 3  # prompts
SHOWN_CHARACTERS = 80  # of each


@dataclass(frozen=True, slots=True)
class Evidence:
    """The RL run ``key`` of ``store``."""

    store: ArtifactStore
    key: str

    def never_right(self, iteration: int) -> str:
        """Return the end of a sentence: some of the prompts that were wrong in every sample of the
        iterations up to ``iteration``, and the command that shows all of them.

        If the store cannot be read, return the reason instead: that must not end a run.
        """
        see = f"to see them: `{command(self.store, never_right_query(self.key, iteration))}`"
        try:
            names = self._names(iteration)
        except UserError as error:
            return f" (their names cannot be read: {error}; {see})"
        return f", such as {' and '.join(names)} ({see})"

    def _names(self, iteration: int) -> list[str]:
        answered = RecentAnswers(self.store, self.key).answered(iteration)
        wrong = answered.filter(pl.col("right") == 0).head(NAMED)
        prompts = wrong.join(self._prompts(iteration), on="uid", maintain_order="left")
        return [_quoted(messages[-1]["content"]) for messages in prompts["prompt"]]

    def _prompts(self, iteration: int) -> pl.DataFrame:
        rollouts = self.store.find("rollouts", f"{self.key}/{iteration:06d}")
        parents = {} if rollouts is None else self.store.manifest(rollouts).parents
        if "dataset" not in parents:
            raise UserError(f"the store has no rollouts of iteration {iteration} with prompts")
        return self.store.table(parents["dataset"], "prompts")


def never_right_query(key: str, iteration: int) -> str:
    """Return the SELECT over the store's views (``results.queries``) of every prompt of the run
    ``key`` that was wrong in all its samples, with the answers given.

    It counts as ``RecentAnswers.answered`` does, and contains no character that a shell expands
    between double quotes.
    """
    first = iteration - RECENT + 1
    return (
        "select t.uid, p.prompt[-1].content as prompt, p.ground_truth,"
        " mode(t.response) as response, count(t.correct) as samples"
        " from trajectories t join (select distinct on (uid) * from prompts) p on p.uid = t.uid"
        f" where t.key like '{key}/%' and t.iteration between {first} and {iteration} group by all"
        f" having count(t.correct) >= {LEAST_ANSWERS} and not bool_or(t.correct)"
        " order by samples desc, t.uid"
    )


def command(store: ArtifactStore, sql: str) -> str:
    """Return the command line that runs ``sql`` on ``store``, from any folder."""
    return f'rl-pipeline sql --store {shlex.quote(store.root)} "{sql}"'


def _quoted(text: str) -> str:
    """Return a prompt as one line of at most ``SHOWN_CHARACTERS``, without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    short = line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 3] + "..."
    return f"'{short}'"


class Stream:
    """The metrics that checks read: of this iteration and, oldest first, of those before.

    A value that is not finite counts as NaN in ``now`` and is left out of the histories.
    """

    __slots__ = ("_steps", "_values", "iteration", "now", "recipe")

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.iteration = 0
        self.now: dict[str, float] = {}
        self._values: dict[str, list[float]] = {}
        self._steps: dict[str, list[int]] = {}

    def add(self, iteration: int, values: Mapping[str, float]) -> None:
        """Move on to ``iteration``."""
        self.iteration = iteration
        # The metrics table stores no infinities, and a replay must see the same values as the run.
        self.now = {n: v if math.isfinite(v) else math.nan for n, v in values.items()}
        for name, value in self.now.items():
            if not math.isnan(value):
                self._values.setdefault(name, []).append(value)
                self._steps.setdefault(name, []).append(iteration)

    def history(self, name: str) -> Sequence[float]:
        """Return the finite values so far, this iteration's last."""
        return self._values.get(name, ())

    def steps(self, name: str) -> Sequence[int]:
        """Return the iterations of those values."""
        return self._steps.get(name, ())

    @property
    def last(self) -> dict[str, float]:
        """The newest finite value of each metric, of any iteration."""
        return {name: values[-1] for name, values in self._values.items()}

    def start(self, name: str, count: int) -> float | None:
        """Return the mean of the first ``count`` values, None while there are fewer."""
        values = self.history(name)[:count]
        return sum(values) / count if len(values) == count else None

    def recent(self, name: str, count: int) -> float | None:
        """Return the mean of the last ``count`` values, None while there are fewer."""
        values = self.history(name)[-count:]
        return sum(values) / count if len(values) == count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule.

    ``reads``: metrics an iteration must have for the rule to apply; none = applied once, to the
    recipe, at the start. ``measure`` returns the measured number, or None or NaN when there is none
    yet; without it, that is the first metric of ``reads``. A problem is a number at or above
    ``threshold`` (at or below it with ``below``), unless ``quiet`` explains it. ``says`` is a
    format string over ``value``, ``threshold``, ``now`` (the iteration's metrics), ``last`` (each
    metric's newest value) and ``lasted`` (iterations). ``patience``: iterations in a row until it
    is reported; ``fatal_after``: until the run ends, None = never. Where message or remedy depend
    on the cause, or on what the recipe has switched on, they are functions of the stream. ``shows``
    adds what the records of the run show at an iteration.
    """

    name: str
    reads: tuple[str, ...] = ()
    measure: Callable[[Stream], float | None] | None = None
    threshold: float | Callable[[Recipe], float]
    below: bool = False
    says: str | Callable[[Stream], str]
    remedy: str | Callable[[Stream], str]
    shows: Callable[[Evidence, int], str] | None = None
    patience: int = 1
    fatal_after: int | None = None
    applies: Callable[[Recipe], bool] = lambda recipe: True
    quiet: Callable[[Stream], bool] = lambda stream: False

    def measured(self, stream: Stream) -> float | None:
        """Return the measured number; the iteration has the metrics that the rule reads."""
        return stream.now[self.reads[0]] if self.measure is None else self.measure(stream)

    def limit(self, recipe: Recipe) -> float:
        """Return the threshold under ``recipe``."""
        return self.threshold(recipe) if callable(self.threshold) else self.threshold

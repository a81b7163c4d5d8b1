"""Two evaluations on the prompts that both have: the difference of each figure with its 95 %
interval, and conditions on it.

Copies say nothing more of a policy than more samples do, so intervals are of questions.

Letters: P prompts that both evaluations have, U distinct values among them, B bootstrap draws.
"""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from schemas.errors import UserError, did_you_mean
from schemas.outcomes import Outcome


def with_question(completions: pl.DataFrame) -> pl.DataFrame:
    """Return ``completions`` with ``question``: the least uid of the rows of its source and subset
    that have the same prompt.

    Episodes that begin with the same text differ in their environment, so each is its own.
    """
    first = pl.col("uid").min().over("data_source", "subset", "prompt")
    played = pl.col("turns").list.len() > 0
    return completions.with_columns(
        pl.when(played).then(pl.col("uid")).otherwise(first).alias("question")
    )


def one_per_question(prompts: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a Prompts table that are the ``question`` of a completion of theirs."""
    said = pl.col("prompt").list.eval(pl.element().struct.field("content")).list.join("\n")
    asked = prompts.with_columns(asked=said)
    first = pl.col("uid").min().over("data_source", "subset", "asked")
    return asked.filter(pl.col("uid") == first).drop("asked")


RESAMPLES = 2000  # bootstrap draws: the ends of a 95 % interval move by about 1 % of its width
SEED = 0
# By name: what a prompt's value is.
METRICS = {
    "accuracy": "whether the greedy answer is right",
    "sampled_accuracy": "share of right answers among those sampled",
    "score": "reward of the greedy answer",
    "length": "tokens of the greedy answer",
}
_JUDGED = [outcome.value for outcome in (Outcome.OK, Outcome.WRONG, Outcome.NO_ANSWER)]
_CONDITION = re.compile(
    r"\s*(?P<metric>[^\s<>=]+)\s*(?P<sign>[<>])\s*"
    r"(?P<bound>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Second minus first mean over ``pairs`` prompts, with the bounds of its 95 % interval."""

    metric: str
    first: float
    second: float
    value: float
    low: float
    high: float
    pairs: int
    higher: int  # of the pairs, those whose second value is above the first
    lower: int
    unmatched_first: int  # prompts that the second lacks
    unmatched_second: int


@dataclass(frozen=True, slots=True)
class Condition:
    """``METRIC < BOUND``: the second is surely below the first plus BOUND; ``>``: surely above."""

    text: str
    metric: str
    sign: Literal["<", ">"]
    bound: float

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read a condition such as "accuracy < -0.01".

        Raises UserError where it is none, or names no metric of ``METRICS``.
        """
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise UserError(
                f"--fail-if '{text}' is no condition; write METRIC < NUMBER or METRIC > NUMBER,"
                ' e.g. "accuracy < -0.01"'
            )
        metric, sign = found["metric"], found["sign"]
        if metric not in METRICS:
            raise UserError(
                f"--fail-if '{text}': there is no metric '{metric}'"
                f"{did_you_mean(metric, METRICS)}; there are {', '.join(METRICS)}"
            )
        return cls(text.strip(), metric, "<" if sign == "<" else ">", float(found["bound"]))

    def holds(self, difference: Difference) -> bool:
        """Return whether the whole 95 % interval is beyond the bound."""
        if self.sign == "<":
            return difference.high < self.bound
        return difference.low > self.bound


def mean_difference(differences: np.ndarray) -> tuple[float, float, float]:
    """Return mean and 95 % percentile bootstrap interval of ``differences`` [P], one per prompt.

    Prompts are resampled with replacement ``RESAMPLES`` times (Efron 1979), with a fixed seed: the
    same differences give the same interval. A resample is drawn as the number of times that each
    distinct value occurs in it, which has the same distribution and, for right and wrong answers,
    three numbers instead of P.
    """
    values_U, counts_U = np.unique(differences, return_counts=True)
    num_prompts = len(differences)
    draws_BU = np.random.default_rng(SEED).multinomial(
        num_prompts, counts_U / num_prompts, RESAMPLES
    )
    low, high = np.quantile(draws_BU @ values_U / num_prompts, [0.025, 0.975])
    return float(np.mean(differences)), float(low), float(high)


def prompt_values(
    completions: pl.DataFrame, eval_results: pl.DataFrame, checkpoint: str
) -> dict[str, pl.DataFrame]:
    """Return, by metric of ``METRICS``, a frame with ``uid`` and ``value`` of each question, whose
    uid is that of the first of its rows.

    ``completions``, ``eval_results``: the tables of one evaluation. A metric that no prompt has is
    left out. Accuracy leaves out the sources whose reward functions did not judge every answer that
    has a score: which were judged is not in the tables.
    """
    mine = with_question(completions.filter(pl.col("checkpoint") == checkpoint))
    results = eval_results.filter(pl.col("checkpoint") == checkpoint)
    greedy = mine.filter(pl.col("mode") == "greedy")
    right = pl.col("outcome") == Outcome.OK.value
    found = {
        "accuracy": _means(_judged(greedy, results, "greedy/acc"), right),
        "sampled_accuracy": _means(
            _judged(mine.filter(pl.col("mode") == "sampled"), results, "sampled/avg@"), right
        ),
        "score": _means(greedy.filter(pl.col("score").is_not_null()), pl.col("score")),
        "length": _means(greedy, pl.col("num_tokens")),
    }
    return {metric: values for metric, values in found.items() if values.height}


def difference(metric: str, first: pl.DataFrame, second: pl.DataFrame) -> Difference | None:
    """Return the difference of two frames of ``prompt_values`` on the prompts that both have; None
    where they share none."""
    both = first.join(second, on="uid", how="inner", suffix="_second")
    if not both.height:
        return None
    apart = (both["value_second"] - both["value"]).to_numpy()
    value, low, high = mean_difference(apart)
    return Difference(
        metric,
        first=float(both["value"].to_numpy().mean()),
        second=float(both["value_second"].to_numpy().mean()),
        value=value,
        low=low,
        high=high,
        pairs=both.height,
        higher=int((apart > 0).sum()),
        lower=int((apart < 0).sum()),
        unmatched_first=first.height - both.height,
        unmatched_second=second.height - both.height,
    )


def _judged(rows: pl.DataFrame, results: pl.DataFrame, metric: str) -> pl.DataFrame:
    """Return the judged rows of the sources all of whose scored rows were judged: those for which
    the figure ``metric`` (prefix of its name) was computed from as many as there are."""
    keys = ["data_source", "subset"]
    figures = results.filter(pl.col("metric").str.starts_with(metric))
    scored = rows.filter(pl.col("outcome").is_in(_JUDGED))
    whole = (
        scored.group_by(keys)
        .len()
        .join(figures, on=keys)
        .filter(pl.col("len") == pl.col("num_samples"))
    )
    return scored.join(whole.select(keys), on=keys, how="semi")


def _means(rows: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    """Return the mean of ``value`` per question, in the order of their ids."""
    means = rows.group_by("question").agg(value.cast(pl.Float64).mean().alias("value"))
    return means.rename({"question": "uid"}).sort("uid")

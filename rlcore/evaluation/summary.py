"""From scored completions to the EvalResults table: each figure per source and subset, and over
all.

Metrics, with n = ``evaluate.samples``:

    greedy/acc                                share of questions whose greedy completion is correct
    sampled/avg@n, sampled/pass@k             mean over questions of avg@n and of unbiased pass@k
    sampled/maj@n                             share of questions whose majority answer is correct
    {greedy,sampled}/score                    mean reward
    {greedy,sampled}/response_length/mean     tokens, stop token included
    {greedy,sampled}/response_length/clip_ratio   share cut off by the length limit
    {greedy,sampled}/unscored                 share with outcome timeout, error or aborted
    {greedy,sampled}/aborted                  share that the engine aborted
    {greedy,sampled}/judge_failed             share on which a reward function of weight 0 failed
    {greedy,sampled}/turns/mean               turns of the policy, in an environment
    {greedy,sampled}/valid_action_ratio       share of its turns that the environment could read
    {greedy,sampled}/called                   share of episodes in which a tool gave a result

Completions without a score are left out of the first four lines and counted in ``unscored``; a
figure that no prompt qualifies for is left out, as are accuracies where no reward function checks
correctness. Rows that ask the same question (``results/paired.py``) count as one: the mean of
their figures. Shares of questions carry Wilson intervals, the others a bootstrap over questions.
"all" weighs every question alike.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from rlcore.algorithms.seeds import stream_seed
from rlcore.algorithms.statistics import (
    Estimate,
    avg_at_k,
    bootstrap_mean,
    is_majority_right,
    pass_at_k,
    wilson,
)
from rlcore.results.paired import with_question
from schemas.outcomes import FinishReason, Outcome
from schemas.recipe import EvaluateSection

ALL = "all"


@dataclass(frozen=True, slots=True)
class GroupMetric:
    """One metric of one group of prompts: a value per question that it is computed from."""

    metric: str
    values: np.ndarray
    is_share: bool  # values are 0 or 1, unless copies of a question differ
    num_samples: int

    def estimate(self, seed: int) -> Estimate:
        """Return mean and interval; the bootstrap's random stream is of ``seed`` and the metric."""
        if self.is_share and np.isin(self.values, (0, 1)).all():
            return wilson(int(self.values.sum()), len(self.values))
        return bootstrap_mean(self.values, stream_seed(seed, "bootstrap", self.metric))


def summarize(drawn: pl.DataFrame, section: EvaluateSection, seed: int) -> pl.DataFrame:
    """Return the EvalResults table of ``drawn``, Completions of one checkpoint with ``correct`` and
    ``judge_failed``."""
    drawn = with_question(drawn)
    return results_table(drawn, drawn["checkpoint"][0], lambda one: _figures(one, section), seed)


def results_table(
    rows: pl.DataFrame,
    checkpoint: str,
    figures: Callable[[pl.DataFrame], Iterator[GroupMetric]],
    seed: int,
) -> pl.DataFrame:
    """Return the EvalResults table of the ``figures`` of ``rows``, per source and subset and over
    all; those that no prompt qualifies for are left out."""
    groups = rows.select("data_source", "subset").unique(maintain_order=True).rows()
    found = []
    for source, subset in [*groups, (ALL, ALL)]:
        mine = (pl.col("data_source") == source) & (pl.col("subset") == subset)
        for figure in figures(rows if source == ALL else rows.filter(mine)):
            if not len(figure.values):
                continue
            estimate = figure.estimate(seed)
            found.append(
                {
                    "checkpoint": checkpoint,
                    "data_source": source,
                    "subset": subset,
                    "metric": figure.metric,
                    "value": estimate.value,
                    "ci_low": estimate.low,
                    "ci_high": estimate.high,
                    "num_prompts": len(figure.values),
                    "num_samples": figure.num_samples,
                }
            )
    return pl.DataFrame(found)


def _figures(group: pl.DataFrame, section: EvaluateSection) -> Iterator[GroupMetric]:
    for mode in group["mode"].unique(maintain_order=True):
        completions = group.filter(pl.col("mode") == mode).sort("uid", "sample")
        if mode == "sampled":
            yield from _of_samples(_with_verdict(completions), section.samples, section.pass_k)
        yield from _of_completions(completions, mode)


def _with_verdict(completions: pl.DataFrame) -> pl.DataFrame:
    return completions.filter(pl.col("correct").is_not_null())


def _of_samples(
    with_verdict: pl.DataFrame, n: int, pass_k: tuple[int, ...]
) -> Iterator[GroupMetric]:
    """Yield avg@n, pass@k and maj@n over prompts with enough samples that have a verdict; no maj@n
    where a right sample has no answer, so that none could win."""
    prompts = with_verdict.group_by("uid", maintain_order=True).agg(
        "correct", "answer", pl.col("question").first()
    )
    yield _over(f"sampled/avg@{n}", prompts, lambda correct, _: avg_at_k(correct))
    for k in pass_k:
        enough = prompts.filter(pl.col("correct").list.len() >= k)
        yield _over(
            f"sampled/pass@{k}",
            enough,
            lambda correct, _, k=k: pass_at_k(len(correct), sum(correct), k),
            k == n,  # each prompt's value is then 0 or 1: a share of prompts
        )
    if with_verdict.filter(pl.col("correct") & pl.col("answer").is_null()).is_empty():
        yield _over(f"sampled/maj@{n}", prompts, is_majority_right, True)


def _over(
    metric: str,
    prompts: pl.DataFrame,
    estimator: Callable[[list[bool], list[str | None]], float],
    is_share: bool = False,
) -> GroupMetric:
    values = [float(estimator(*row)) for row in prompts.select("correct", "answer").iter_rows()]
    rows = prompts.select("question", value=pl.Series(values, dtype=pl.Float64))
    num_samples = int(prompts["correct"].list.len().sum())
    return _per_question(metric, rows, pl.col("value"), is_share, num_samples)


def _per_question(
    metric: str, rows: pl.DataFrame, value: pl.Expr, is_share: bool, num_samples: int
) -> GroupMetric:
    """Return the means of ``value`` over the rows of each question, in order of appearance."""
    means = rows.group_by("question", maintain_order=True).agg(value.cast(pl.Float64).mean())
    return GroupMetric(metric, means.to_series(1).to_numpy(), is_share, num_samples)


def _of_completions(completions: pl.DataFrame, mode: str) -> list[GroupMetric]:
    """Return accuracy if greedy, score, length, truncation and failures."""
    scored = completions.filter(pl.col("score").is_not_null())
    share = mode == "greedy"
    columns = {"acc": (_with_verdict(completions), pl.col("correct"), True)} if share else {}
    columns |= {
        "score": (scored, pl.col("score"), False),
        "response_length/mean": (completions, pl.col("num_tokens"), False),
        "response_length/clip_ratio": (
            completions,
            pl.col("finish_reason") == FinishReason.LENGTH.value,
            share,
        ),
        "unscored": (completions, pl.col("score").is_null(), share),
        "aborted": (completions, pl.col("outcome") == Outcome.ABORTED.value, share),
        "judge_failed": (completions, pl.col("judge_failed"), share),
    }
    if completions["turns"].list.len().max():
        valid = pl.col("valid_actions").list
        columns |= {
            "turns/mean": (completions, valid.len(), False),
            "valid_action_ratio": (completions, valid.mean(), False),
            "called": (completions, _called(), share),
        }
    return [
        _per_question(f"{mode}/{name}", rows, value, is_share, rows.height)
        for name, (rows, value, is_share) in columns.items()
    ]


def _called() -> pl.Expr:
    """Whether a tool answered with something other than an error."""
    said, role = pl.element().struct.field("content"), pl.element().struct.field("role")
    result = (role == "tool") & ~said.str.starts_with("error:")
    return pl.col("turns").list.eval(result).list.any()

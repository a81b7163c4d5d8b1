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
    majority,
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
        """Return mean and interval; the bootstrap's random stream depends on ``seed`` and the
        metric."""
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
        n = 1 if mode == "greedy" else section.samples
        with_verdict = completions.filter(pl.col("correct").is_not_null())
        if mode == "sampled":
            yield from _accuracies(with_verdict, n, section.pass_k)
        else:
            yield _greedy(with_verdict)
        yield from _score_length_and_failures(completions, mode)


def _greedy(with_verdict: pl.DataFrame) -> GroupMetric:
    right = with_verdict["correct"].to_numpy().astype(float)
    values = _per_question(right, with_verdict["question"])
    return GroupMetric("greedy/acc", values, True, with_verdict.height)


def _per_question(values: np.ndarray, questions: pl.Series) -> np.ndarray:
    """Return the mean of the ``values`` of each question, in order of first appearance."""
    rows = pl.DataFrame({"question": questions, "value": values})
    means = rows.group_by("question", maintain_order=True).agg(pl.col("value").mean())
    return means["value"].to_numpy()


def _accuracies(with_verdict: pl.DataFrame, n: int, pass_k: tuple[int, ...]) -> list[GroupMetric]:
    """Return avg@n, pass@k and maj@n over prompts with enough samples that have a verdict."""
    prompts = with_verdict.group_by("uid", maintain_order=True).agg(
        "correct", "answer", pl.col("question").first()
    )
    asked_P = prompts["question"]
    correct_P = prompts["correct"].to_list()
    answers_P = prompts["answer"].to_list()
    winners = [
        (index := majority(answers)) is not None and correct[index]
        for answers, correct in zip(answers_P, correct_P, strict=True)
    ]
    figures = [_over(f"sampled/avg@{n}", correct_P, asked_P, avg_at_k)]
    for k in pass_k:
        kept = [i for i, correct in enumerate(correct_P) if len(correct) >= k]
        enough = [correct_P[i] for i in kept]
        figures.append(
            # with k = n each prompt's value is 0 or 1: a share of prompts
            _over(
                f"sampled/pass@{k}",
                enough,
                asked_P.gather(kept),
                lambda c, k=k: pass_at_k(len(c), sum(c), k),
                k == n,
            )
        )
    majorities = _per_question(np.array(winners, dtype=float), asked_P)
    return [*figures, GroupMetric(f"sampled/maj@{n}", majorities, True, with_verdict.height)]


def _score_length_and_failures(completions: pl.DataFrame, mode: str) -> list[GroupMetric]:
    """Return score, length, truncation and failures, one value per question."""
    scored = completions.filter(pl.col("score").is_not_null())
    share = mode == "greedy"
    columns = {
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
    figures = []
    for name, (rows, expression, is_share) in columns.items():
        means = rows.group_by("question", maintain_order=True).agg(
            expression.cast(pl.Float64).mean().alias("value")
        )
        figures.append(
            GroupMetric(f"{mode}/{name}", means["value"].to_numpy(), is_share, rows.height)
        )
    return figures


def _called() -> pl.Expr:
    """Whether a tool answered with something other than an error."""
    said, role = pl.element().struct.field("content"), pl.element().struct.field("role")
    result = (role == "tool") & ~said.str.starts_with("error:")
    return pl.col("turns").list.eval(result).list.any()


def _over(
    metric: str,
    correct_P: list[list[bool]],
    asked_P: pl.Series,
    estimator: Callable[[list[bool]], float],
    is_share: bool = False,
) -> GroupMetric:
    values = np.array([estimator(correct) for correct in correct_P], dtype=float)
    values = _per_question(values, asked_P)
    return GroupMetric(metric, values, is_share, sum(len(correct) for correct in correct_P))

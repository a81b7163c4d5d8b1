"""How often one policy's answers are preferred to another's, by a judge that reads each pair in
both orders: the pairs of an evaluation, and the figures of their verdicts.

Axes: P prompts, each with a pair of answers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from rlcore.algorithms.statistics import Z_95, Estimate
from rlcore.cluster.progress import activity
from rlcore.evaluation.summary import ALL
from rlcore.results.paired import mean_difference
from rlcore.rewards.pairs import Pair, compare
from rlcore.rewards.types import spoken_text
from schemas.errors import UserError
from schemas.judges import REFERENCE
from schemas.outcomes import Outcome
from schemas.recipe import Recipe

PAIRS = "win_pairs"
Log = Callable[[str], None]
LEAST_CONSISTENCY = 0.6  # share of pairs below which a judge's verdicts are no evidence
RIDGE = 1.0  # on the weight of the length, as much as one standard-normal observation
_STEPS = 100  # of Newton's method, which halves a step that gains nothing
_NEAR = 1e-9  # a step that is none
NAME, CONTROLLED = "win_rate", "win_rate/length_controlled"
CONSISTENCY, FIRST = "win_rate/consistency", "win_rate/first"


class NoEvidence(UserError):
    """A judge whose verdicts say nothing of two models; the message says why."""


@dataclass(frozen=True, slots=True)
class WinFigures:
    """What the verdicts come to.

    ``rate``: share of pairs won, ties half; None where they are no evidence. ``controlled``: what
    it would be between answers of equal length; None also where it cannot be identified. Of pairs
    that the judge read, None without one: ``consistency``, the share that kept their winner, or
    tie, when they were swapped, and ``first``, the share that the answer read first won, ties half:
    0.5 without order bias.
    """

    rate: Estimate | None
    controlled: Estimate | None
    consistency: Estimate | None
    first: Estimate | None

    def rows(self) -> Iterator[tuple[str, Estimate]]:
        """Yield name and figure of those there are."""
        figures = (self.rate, self.controlled, self.consistency, self.first)
        named = zip((NAME, CONTROLLED, CONSISTENCY, FIRST), figures, strict=True)
        yield from ((name, figure) for name, figure in named if figure is not None)

    def sentence(self, judge: str, against: str) -> str:
        """Return the figures as a person reads them."""
        read = "no pair differed"
        if self.consistency is not None and self.first is not None:
            read = (
                f"judge {judge!r} kept {self.consistency.value:.0%} of its verdicts when the"
                f" answers were swapped, and {self.first.value:.0%} went to the one read first"
            )
        if self.rate is None:
            return (
                f"no win rate over {against}: {read}; below {LEAST_CONSISTENCY:.0%} kept its"
                " verdicts are no evidence; take another judge or template"
            )
        length = "not identifiable, as the judge's verdicts and the lengths do not come apart"
        if self.controlled is not None:
            length = _text(self.controlled)
        return f"win rate over {against} {_text(self.rate)}; length-controlled {length}; {read}"


def with_win_rates(
    tables: Mapping[str, pl.DataFrame], recipe: Recipe, *, log: Log
) -> dict[str, pl.DataFrame]:
    """Return the ``tables`` of an evaluation, ``eval_results`` and ``completions``, with the
    figures, and the table ``win_pairs``, of the checkpoints that ``evaluate.win_rate`` compares.

    Raises as ``compared_answers``.
    """
    completions, section = tables["completions"], recipe.evaluate.win_rate
    if section is None:
        return dict(tables)
    checkpoints = completions["checkpoint"].unique(maintain_order=True).to_list()
    figures, pairs = list[dict[str, Any]](), list[pl.DataFrame]()
    for checkpoint in section.compared(checkpoints):
        ours = greedy_answers(completions, checkpoint)
        if section.against == REFERENCE:
            theirs = ours.with_columns(answer="ground_truth").drop_nulls("answer")
        else:
            theirs = greedy_answers(completions, section.against)
        mine = compared_answers(recipe, ours, theirs, log=log)
        names = {"checkpoint": pl.lit(checkpoint), "against": pl.lit(section.against)}
        pairs.append(mine.with_columns(**names))
        whole = figures_of(mine)
        log(f"{checkpoint}: {whole.sentence(section.judge, section.against)}")
        for where in [*mine.select("data_source", "subset").unique().sort(pl.all()).rows(), None]:
            source, subset = where or (ALL, ALL)
            of_group = (pl.col("data_source") == source) & (pl.col("subset") == subset)
            figures += [
                {"checkpoint": checkpoint, "data_source": source, "subset": subset, **row}
                for row in _rows(mine.filter(of_group) if where else mine)
                if whole.rate is not None or row["metric"] in (CONSISTENCY, FIRST)
            ]
    if not pairs:
        return dict(tables)
    results = pl.concat([tables["eval_results"], pl.DataFrame(figures)], how="vertical_relaxed")
    return {**tables, "eval_results": results, PAIRS: pl.concat(pairs)}


def greedy_answers(completions: pl.DataFrame, checkpoint: str) -> pl.DataFrame:
    """Return uid, data_source, subset, prompt, ground_truth and ``answer`` (of an episode all that
    was said) of each greedy completion of ``checkpoint``."""
    whole = pl.col("outcome") != Outcome.ABORTED.value
    mine = completions.filter(whole, checkpoint=checkpoint, mode="greedy")
    said = [spoken_text(*row) for row in mine.select("response", "turns").iter_rows()]
    columns = ("uid", "data_source", "subset", "prompt", "ground_truth")
    return mine.select(*columns, answer=pl.Series(said, dtype=pl.String))


def compared_answers(
    recipe: Recipe, ours: pl.DataFrame, theirs: pl.DataFrame, *, log: Log
) -> pl.DataFrame:
    """Return the table ``win_pairs``, without its names, of the prompts that both frames of
    ``greedy_answers`` have: what the judge of ``evaluate.win_rate`` says of our answers.

    Raises UserError where they share none, and as ``compare``.
    """
    section = recipe.evaluate.win_rate
    assert section is not None, "a recipe without the section compares nothing"
    both = ours.join(theirs.select("uid", other="answer"), on="uid", maintain_order="left")
    if both.is_empty():
        raise UserError(
            f"evaluate.win_rate.against = {section.against!r}: no evaluated prompt has its answer;"
            " compare with a checkpoint, or give the test rows a ground_truth"
        )
    columns = ("prompt", "ground_truth", "answer", "other")
    asked = [Pair(*row) for row in both.select(columns).iter_rows()]
    with activity(f"comparison of answers by judge {section.judge}"):
        found = compare(recipe, section.judge, asked, rows="comparisons of answers", log=log)
    pairs = both.drop("ground_truth").with_columns(
        before=pl.Series([each.before for each in found], dtype=pl.Float64),
        after=pl.Series([each.after for each in found], dtype=pl.Float64),
        asked=pl.Series([each.asked for each in found]),
        verdicts=pl.Series([each.verdicts_json(section.judge) for each in found], dtype=pl.String),
    )
    if with_verdicts(pairs).is_empty():
        raise UserError(
            f"judge {section.judge!r} gave no pair of answers a verdict in both orders; look at its"
            " answers in the log, and at judges.NAME.max_tokens"
        )
    return pairs


def won_prompts(
    recipe: Recipe, ours: pl.DataFrame, theirs: pl.DataFrame, *, log: Log
) -> pl.DataFrame:
    """Return uid and ``value``, what our answer is worth against theirs, of each prompt.

    Raises NoEvidence where the judge's verdicts say nothing, UserError as ``compared_answers``.
    """
    pairs = compared_answers(recipe, ours, theirs, log=log)
    section, figures = recipe.evaluate.win_rate, figures_of(pairs)
    said = figures.sentence(section.judge if section else "", "the champion")
    if figures.rate is None:
        raise NoEvidence(said)
    log(said)
    return with_verdicts(pairs).select("uid", "value")


def with_verdicts(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of ``win_pairs`` with a verdict in both orders, and ``value``, their mean."""
    value = (pl.col("before") + pl.col("after")) / 2
    return pairs.with_columns(value=value).drop_nulls("value")


def figures_of(pairs: pl.DataFrame) -> WinFigures:
    """Return the figures of rows of ``win_pairs``, some with a verdict in both orders; lengths are
    counted in characters."""
    read = with_verdicts(pairs)
    lengths = read["answer"].str.len_chars().cast(pl.Int64) - read["other"].str.len_chars()
    columns = [read["before"], read["after"], lengths, read["asked"]]
    return win_figures(*(column.to_numpy() for column in columns))


def _rows(pairs: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the figures of ``pairs`` as rows of ``eval_results``."""
    judged = with_verdicts(pairs).height
    return [
        {
            "metric": metric,
            "value": figure.value,
            "ci_low": figure.low,
            "ci_high": figure.high,
            "num_prompts": judged,
            "num_samples": judged,
        }
        for metric, figure in (figures_of(pairs).rows() if judged else ())
    ]


def win_figures(
    before_P: np.ndarray, after_P: np.ndarray, lengths_P: np.ndarray, asked_P: np.ndarray
) -> WinFigures:
    """Return the figures of pairs with a verdict in both orders.

    ``before_P``, ``after_P``: what the answer of the policy is worth (1 won, 0.5 tie, 0 lost) where
    it was read before the other, and after it. ``lengths_P``: its length less the other's, in any
    unit. ``asked_P`` bool: whether the judge read the pair; equal answers are ties unread. At least
    one pair. The intervals are bootstraps over prompts (``mean_difference``), but that of
    ``controlled``.
    """
    consistency = first = None
    if asked_P.any():
        consistency = _mean((before_P == after_P)[asked_P].astype(float))
        first = _mean(((before_P + 1 - after_P) / 2)[asked_P])
    if consistency is not None and consistency.value < LEAST_CONSISTENCY:
        return WinFigures(None, None, consistency, first)
    values_P = (before_P + after_P) / 2
    controlled = length_controlled(values_P, lengths_P)
    return WinFigures(_mean(values_P), controlled, consistency, first)


def length_controlled(values_P: np.ndarray, lengths_P: np.ndarray) -> Estimate | None:
    """Return the win rate at equal length; None where it cannot be identified: one number splits
    the differences of length into won and lost, or all of them are one.

    P(won) = sigma(a + b z), z the difference of length over its standard deviation, fitted by
    logistic regression with a ridge on b; the figure is sigma(a), as in AlpacaEval 2 (arXiv
    2404.04475 eq. 2, without its term of the prompt), where ours keeps the difference as it is
    (tanh there). Its 95 % interval is Wald's on a, with the robust covariance (White 1980).
    Maximum-likelihood fits exist unless the classes separate (Albert and Anderson 1984).
    """
    spread = float(lengths_P.std())
    z_P = lengths_P / (spread or 1.0)
    won, lost = z_P[values_P > 0], z_P[values_P < 1]
    if not won.size or not lost.size or (spread == 0.0 and z_P[0] != 0.0):
        return None
    if spread and (lost.max() <= won.min() or won.max() <= lost.min()):
        return None
    x_PC = np.stack([np.ones_like(z_P), z_P], axis=1)
    fit, p_P, inverse = _fitted(x_PC, values_P)
    scores_PC = x_PC * (values_P - p_P)[:, None]
    half = Z_95 * float(np.sqrt((inverse @ (scores_PC.T @ scores_PC) @ inverse)[0, 0]))
    low, value, high = _sigma(fit[0] + np.array([-half, 0.0, half]))
    return Estimate(float(value), float(low), float(high))


def _fitted(x_PC: np.ndarray, values_P: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights, probabilities and the inverse of the Hessian, by Newton's method."""
    ridge, fit = np.diag([0.0, RIDGE]), np.zeros(2)

    def loss(weights: np.ndarray) -> float:
        eta_P = x_PC @ weights
        nll = np.sum(np.logaddexp(0, eta_P) - values_P * eta_P)
        return float(nll + RIDGE * weights[1] ** 2 / 2)

    def derivatives() -> tuple[np.ndarray, np.ndarray]:
        p_P = _sigma(x_PC @ fit)
        return p_P, np.linalg.inv((x_PC.T * (p_P * (1 - p_P))) @ x_PC + ridge)

    for _ in range(_STEPS):
        p_P, inverse = derivatives()
        step = inverse @ (x_PC.T @ (p_P - values_P) + ridge @ fit)
        while np.abs(step).max() > _NEAR and loss(fit - step) > loss(fit):
            step = step / 2
        fit = fit - step
        if np.abs(step).max() <= _NEAR:
            break
    return fit, *derivatives()


def _sigma(eta: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-eta))


def _mean(values_P: np.ndarray) -> Estimate:
    return Estimate(*mean_difference(values_P))


def _text(figure: Estimate) -> str:
    return f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]"

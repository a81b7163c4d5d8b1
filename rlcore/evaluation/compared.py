"""Answers of an evaluation that a judge compares with others: figures, and their pairs."""

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from rlcore.cluster.progress import activity
from rlcore.evaluation.summary import ALL
from rlcore.evaluation.win_rate import CONSISTENCY, FIRST, NoEvidence, WinFigures, win_figures
from rlcore.rewards.pairs import Pair, compare
from rlcore.rewards.types import spoken_text
from schemas.errors import UserError
from schemas.judges import REFERENCE
from schemas.outcomes import Outcome
from schemas.recipe import Recipe

PAIRS = "win_pairs"
Log = Callable[[str], None]


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

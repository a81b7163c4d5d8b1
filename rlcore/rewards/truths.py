"""Whether a dataset and the reward functions fit: each prompt has one, and its ground truth is
what the function compares with."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import polars as pl

from rlcore.rewards.registry import reader_of
from schemas.errors import UserError, did_you_mean
from schemas.rl import RewardFunction


def check_covered(
    prompts: pl.DataFrame | pl.LazyFrame, functions: Sequence[RewardFunction]
) -> None:
    """Raise UserError where no function scores some of ``prompts`` (the Prompts table; of a lazy
    one, few rows are in memory at a time), or one names a data source that no prompt has."""
    counted = prompts.lazy().group_by("data_source", "reward_style").len()
    kinds = counted.sort("data_source", "reward_style").collect(engine="streaming")
    sources = kinds["data_source"].unique().sort().to_list()
    for index, function in enumerate(functions):
        for source in function.data_sources:
            if source not in sources:
                raise UserError(
                    f"reward.functions[{index}].data_sources names {source!r}, and the prompts are"
                    f" of {', '.join(sources)}; correct it{did_you_mean(source, sources)}"
                )
    for source, style, rows in kinds.iter_rows():
        if not any(function.scores(source, style) for function in functions):
            raise UserError(
                f"reward.functions: none scores the {rows} prompts of data_source {source!r} with"
                f" reward_model.style {style!r}; name one for them, or leave them out by"
                " data.filters"
            )


class Truth(NamedTuple):
    """What a prompt is scored by. ``where``: its file and row."""

    where: str
    data_source: str
    style: str
    ground_truth: str | None


def check_truths(truths: Iterable[Truth], functions: Sequence[RewardFunction]) -> None:
    """Raise UserError for the first prompt that a built-in function with a weight cannot score by
    its ground truth, and for a function of weight 0 that can score none of its prompts."""
    rows = list(truths)
    for index, function in enumerate(functions):
        if (read := reader_of(function.name)) is None:
            continue
        own = [row for row in rows if function.scores(row.data_source, row.style)]
        bad = [(row, why) for row in own if (why := _problem(row, function, read))]
        if not bad or (not function.weight and len(bad) < len(own)):
            continue
        row, why = bad[0]
        remedy = "correct it, leave such rows out by data.filters, or name another function"
        if row.ground_truth is None:
            remedy = (
                "name the column that holds it on the source, columns: {ground_truth: NAME}, or"
                " name a function that needs none"
            )
        raise UserError(
            f"{row.where}: reward.functions[{index}] = '{function.name}' cannot score it, since"
            f" {why} ({len(bad):,} of {len(own):,} prompts); {remedy}"
        )


def _problem(row: Truth, function: RewardFunction, read: Callable[..., None]) -> str:
    """Return why ``function`` cannot score ``row``, "" when it can."""
    if row.ground_truth is None:
        return "it has no ground truth"
    try:
        read(row.ground_truth, **function.options)
    except UserError as error:
        return str(error)
    return ""

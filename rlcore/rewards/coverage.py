"""Whether each prompt of a dataset has a reward function, where functions choose their rows."""

from collections.abc import Sequence

import polars as pl

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
                    f" of {', '.join(sources)}{did_you_mean(source, sources)}; leave it out"
                )
    for source, style, rows in kinds.iter_rows():
        if not any(function.scores(source, style) for function in functions):
            raise UserError(
                f"reward.functions: none scores the {rows} prompts of data_source {source!r} with"
                f" reward_model.style {style!r}; name one for them, or leave them out by"
                " data.filters"
            )

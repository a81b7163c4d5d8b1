"""Rows that ask the same question: AIME is often 30 problems in 32 copies each.

Copies say nothing more of a policy than more samples do, so intervals are of questions.
"""

import polars as pl


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

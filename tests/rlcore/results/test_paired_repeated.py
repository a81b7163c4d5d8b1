"""Copies of a question are found in prompts and in completions alike, nothing else is merged."""

import polars as pl

from rlcore.results.paired import one_per_question, with_question
from schemas.table_list import MESSAGES

ROWS = [
    ("b", "maths", "test", "1+1?"),
    ("b-2", "maths", "test", "1+1?"),
    ("a", "maths", "test", "1+1?"),  # with another ground truth
    ("c", "maths", "hard", "1+1?"),
    ("d", "sums", "test", "1+1?"),
    ("e", "maths", "test", "1+2?"),
]
COLUMNS = ["uid", "data_source", "subset", "prompt"]
FIRST = {"b": "a", "b-2": "a", "a": "a", "c": "c", "d": "d", "e": "e"}


def test_prompts_and_completions_name_the_same_row() -> None:
    """The greedy answer of that row stands for its copies, and is found by its uid."""
    completions = pl.DataFrame(ROWS, schema=COLUMNS, orient="row").with_columns(
        turns=pl.lit([], dtype=MESSAGES)
    )
    asked = with_question(completions)
    assert dict(asked.select("uid", "question").iter_rows()) == FIRST
    chats = [[{"role": "user", "content": text}] for *_, text in ROWS]
    prompts = completions.drop("turns").with_columns(prompt=pl.Series(chats, dtype=MESSAGES))
    assert one_per_question(prompts)["uid"].to_list() == ["a", "c", "d", "e"]
    assert one_per_question(prompts).columns == prompts.columns

"""The tables of preparation keep their contracts, and every row its own values."""

import polars as pl

from rlcore.data.rows import Reject, Row
from rlcore.data.write import demonstration_columns, prompts_table, rejects_table
from rlcore.models.chat import Encoded
from schemas.tables import TABLES


def row(text: str, truth: str | None = "1", answer: str = "", source: str = "sums") -> Row:
    solution = [{"role": "assistant", "content": answer}] if answer else []
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": text}]
    return Row("f", 0, "train", "train", source, prompt, solution, ground_truth=truth)


def test_prompts_keep_messages_and_tokens_apart() -> None:
    table = prompts_table([(row("a"), [1, 2, 3]), (row("naïve"), [4])])
    TABLES["prompts"].validate(table)
    assert table["prompt_ids"].to_list() == [[1, 2, 3], [4]]
    assert [[m["content"] for m in chat] for chat in table["prompt"]] == [
        ["s", "a"],
        ["s", "naïve"],
    ]


def test_demonstrations_keep_the_mask_beside_its_tokens() -> None:
    encoded = [Encoded([1, 2], [False, True]), Encoded([3], [True])]
    table = demonstration_columns([(row("a", answer="x"), encoded[0]), (row("b"), encoded[1])])
    TABLES["demonstrations"].validate(table)
    assert table["loss_mask"].to_list() == [[False, True], [True]]
    assert [len(chat) for chat in table["messages"]] == [3, 2]


def test_no_rows_are_tables_of_their_contracts() -> None:
    for name, table in (
        ("prompts", prompts_table([])),
        ("demonstrations", demonstration_columns([])),
        ("rejects", rejects_table([])),
    ):
        assert table.is_empty()
        TABLES[name].validate(table)


def test_a_uid_is_of_content_alone() -> None:
    """Rewards, trajectories and validation refer to it from run to run."""
    first = prompts_table([(row("a"), [1]), (row("b"), [2])])["uid"]
    again = prompts_table([(row("b"), [9]), (row("a"), [1])])["uid"]
    assert first.to_list() == again.reverse().to_list()
    others = [row("a", truth="2"), row("a", truth=None), row("a", source="other")]
    assert len({*prompts_table([(r, [1]) for r in others])["uid"], first[0]}) == 4


def test_repeated_rows_that_stay_have_uids_of_their_own() -> None:
    uids = prompts_table([(row("a"), [1]), (row("b"), [1]), (row("a"), [1]), (row("a"), [1])])[
        "uid"
    ]
    assert uids.n_unique() == 4
    assert uids[2] == f"{uids[0]}-2"
    assert uids[3] == f"{uids[0]}-3"


def test_rejects_are_listed_by_source_and_row() -> None:
    rejects = [
        Reject(s, i, reason, "", "")
        for s, i, reason in [("b", 0, "x"), ("a", 9, "x"), ("a", 2, "y"), ("a", 2, "x")]
    ]
    table = rejects_table(rejects)
    TABLES["rejects"].validate(table)
    assert table.select(pl.col("source"), pl.col("row"), pl.col("reason")).rows() == [
        ("a", 2, "y"),
        ("a", 2, "x"),
        ("a", 9, "x"),
        ("b", 0, "x"),
    ]

"""Columns of the output tables (Prompts, Demonstrations, Rejects) from rows and their tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from rlcore.data.rows import Reject, Row
from rlcore.data.split import content_uid
from rlcore.models.chat import Encoded, Message
from rlcore.models.ragged import from_arrays
from rlcore.store.tables import polars_schema
from schemas.table_list import MESSAGES

# Which of the rows of its uid a row is, from 1: of equal rows that deduplication is to keep.
OCCURRENCE = pl.int_range(1, pl.len() + 1).over("uid")


def prompts_table(prompts: Sequence[tuple[Row, list[int]]]) -> pl.DataFrame:
    """Return the Prompts table, repeated uids numbered."""
    return prompt_columns(prompts).with_columns(numbered_uid(OCCURRENCE))


def prompt_columns(prompts: Sequence[tuple[Row, list[int]]]) -> pl.DataFrame:
    """Return the columns of the Prompts table; uid = hash of source, messages, ground truth."""
    rows = [row for row, _ in prompts]
    return table_of(
        "prompts",
        rows,
        uid=[content_uid(row.data_source, row.prompt, row.ground_truth) for row in rows],
        prompt=_chats(row.prompt for row in rows),
        prompt_ids=from_arrays("", [ids for _, ids in prompts], pl.Int32),
    )


def demonstration_columns(demonstrations: Sequence[tuple[Row, Encoded]]) -> pl.DataFrame:
    """Return the columns of the Demonstrations table; uid = hash of source and messages."""
    rows = [row for row, _ in demonstrations]
    encoded = [tokens for _, tokens in demonstrations]
    return table_of(
        "demonstrations",
        rows,
        uid=[content_uid(row.data_source, row.messages) for row in rows],
        messages=_chats(row.messages for row in rows),
        token_ids=from_arrays("", [tokens.token_ids for tokens in encoded], pl.Int32),
        loss_mask=from_arrays("", [tokens.loss_mask for tokens in encoded], pl.Boolean),
    )


def rejects_table(rejects: Sequence[Reject]) -> pl.DataFrame:
    """Return the Rejects table, ordered by source and row."""
    return table_of("rejects", rejects).sort("source", "row", maintain_order=True)


def table_of(name: str, rows: Sequence[Any], **columns: Any) -> pl.DataFrame:
    """Return the table ``name``: those ``columns``, the others as ``rows`` have them by name."""
    schema = polars_schema(name)
    others = [column for column in schema if column not in columns]
    columns |= {column: [getattr(row, column) for row in rows] for column in others}
    return pl.DataFrame(columns, schema=schema)


def numbered_uid(number: pl.Expr) -> pl.Expr:
    """Return the column uid with the ``number`` of each row (``OCCURRENCE``) but the first."""
    later = pl.concat_str("uid", pl.lit("-"), number)
    return pl.when(number > 1).then(later).otherwise("uid").alias("uid")


def _chats(chats: Iterable[list[Message]]) -> pl.Series:
    """Build the column from flat parts: polars takes seconds over nested Python objects."""
    chats = list(chats)
    names = ("role", "content")
    flat = pl.DataFrame(
        {name: [message[name] for chat in chats for message in chat] for name in names},
        schema=dict.fromkeys(names, pl.String),
    )
    offsets = np.cumsum([0, *(len(chat) for chat in chats)])
    nested = pa.LargeListArray.from_arrays(
        pa.array(offsets, pa.int64()), flat.to_struct("message").to_arrow()
    )
    return pl.Series(nested, dtype=MESSAGES)

"""Columns of the output tables (Prompts, Demonstrations, Rejects) from rows and their tokens."""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from rlcore.data.rows import Reject, Row
from rlcore.data.split import content_uid
from rlcore.models.chat import Encoded, Message
from rlcore.models.ragged import from_arrays
from schemas.table_list import MESSAGES


# Which of the rows of its uid a row is, from 1: of equal rows that deduplication is to keep.
OCCURRENCE = pl.int_range(1, pl.len() + 1).over("uid")


def prompts_table(prompts: Sequence[tuple[Row, list[int]]]) -> pl.DataFrame:
    """Return the Prompts table, repeated uids numbered."""
    return prompt_columns(prompts).with_columns(numbered_uid(OCCURRENCE))


def prompt_columns(prompts: Sequence[tuple[Row, list[int]]]) -> pl.DataFrame:
    """Return the columns of the Prompts table; uid = hash of source, messages, ground truth."""
    rows = [row for row, _ in prompts]
    return pl.DataFrame(
        {
            "uid": _strings(content_uid(r.data_source, r.prompt, r.ground_truth) for r in rows),
            "split": _strings(row.split for row in rows),
            "subset": _strings(row.subset for row in rows),
            "data_source": _strings(row.data_source for row in rows),
            "prompt": _chats(row.prompt for row in rows),
            "prompt_ids": _lists((ids for _, ids in prompts), np.int32, pl.Int32),
            "ability": _strings(row.ability for row in rows),
            "reward_style": _strings(row.reward_style for row in rows),
            "ground_truth": _strings(row.ground_truth for row in rows),
            "extra_info": _strings(row.extra_info for row in rows),
        }
    )


def demonstration_columns(demonstrations: Sequence[tuple[Row, Encoded]]) -> pl.DataFrame:
    """Return the columns of the Demonstrations table; uid = hash of source and messages."""
    rows = [row for row, _ in demonstrations]
    encoded = [tokens for _, tokens in demonstrations]
    return pl.DataFrame(
        {
            "uid": _strings(content_uid(row.data_source, row.messages) for row in rows),
            "split": _strings(row.split for row in rows),
            "data_source": _strings(row.data_source for row in rows),
            "messages": _chats(row.messages for row in rows),
            "token_ids": _lists((tokens.token_ids for tokens in encoded), np.int32, pl.Int32),
            "loss_mask": _lists((tokens.loss_mask for tokens in encoded), np.bool_, pl.Boolean),
        }
    )


def rejects_table(rejects: Sequence[Reject]) -> pl.DataFrame:
    """Return the Rejects table, ordered by source and row."""
    frame = pl.DataFrame(
        {
            "source": _strings(reject.source for reject in rejects),
            "row": pl.Series([reject.row for reject in rejects], dtype=pl.Int64),
            "reason": _strings(reject.reason for reject in rejects),
            "detail": _strings(reject.detail for reject in rejects),
            "content": _strings(reject.content for reject in rejects),
        }
    )
    return frame.sort("source", "row", maintain_order=True)


def numbered_uid(number: pl.Expr) -> pl.Expr:
    """Return the column uid with the ``number`` of each row (``OCCURRENCE``), the first's left
    out."""
    later = pl.concat_str("uid", pl.lit("-"), number)
    return pl.when(number > 1).then(later).otherwise("uid").alias("uid")


def _strings(values: Iterable[str | None]) -> pl.Series:
    return pl.Series(list(values), dtype=pl.String)


def _chats(chats: Iterable[list[Message]]) -> pl.Series:
    """Build the column from flat parts: polars takes seconds over nested Python objects."""
    chats = list(chats)
    flat = pl.DataFrame(
        {
            "role": _strings(message["role"] for chat in chats for message in chat),
            "content": _strings(message["content"] for chat in chats for message in chat),
        }
    )
    offsets = np.cumsum([0, *(len(chat) for chat in chats)])
    nested = pa.LargeListArray.from_arrays(
        pa.array(offsets, pa.int64()), flat.to_struct("message").to_arrow()
    )
    return pl.Series(nested, dtype=MESSAGES)


def _lists(
    values: Iterable[Sequence[int] | Sequence[bool]], dtype: type, inner: type[pl.DataType]
) -> pl.Series:
    return from_arrays("", [np.asarray(value, dtype=dtype) for value in values], inner)

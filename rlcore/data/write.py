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


def prompts_table(prompts: Sequence[tuple[Row, list[int]]]) -> pl.DataFrame:
    """Return the Prompts table, repeated uids numbered."""
    return _numbered(prompt_columns(prompts))


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


def demonstrations_table(demonstrations: Sequence[tuple[Row, Encoded]]) -> pl.DataFrame:
    """Return the Demonstrations table, repeated uids numbered."""
    return _numbered(demonstration_columns(demonstrations))


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


def numbers_of(uids: np.ndarray) -> np.ndarray:
    """Return which of the rows of its uid each row is (int32, from 1), in order: equal rows that
    deduplication is configured to keep."""
    order = np.argsort(uids, kind="stable")
    ordered = uids[order]
    numbers = np.ones(len(uids), dtype=np.int32)
    for at in np.flatnonzero(ordered[1:] == ordered[:-1]).tolist():
        numbers[order[at + 1]] = numbers[order[at]] + 1
    return numbers


def numbered_uid(numbers: np.ndarray) -> pl.Expr:
    """Return the column uid with the numbers of ``numbers_of``, the first's left out."""
    number = pl.lit(pl.Series(numbers))
    later = pl.concat_str(pl.col("uid"), pl.lit("-"), number)
    return pl.when(number > 1).then(later).otherwise(pl.col("uid")).alias("uid")


def _numbered(frame: pl.DataFrame) -> pl.DataFrame:
    uids = np.array([int(uid, 16) for uid in frame["uid"]], dtype=np.uint64)
    return frame.with_columns(numbered_uid(numbers_of(uids)))


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

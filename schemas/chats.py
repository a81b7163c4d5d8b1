"""The type of a column of chats; light, unlike the contracts in ``schemas/tables.py``, whose import
takes seconds and is too much for a process that only makes rows."""

import polars as pl

MESSAGE = pl.Struct({"role": pl.String, "content": pl.String})
MESSAGES = pl.List(MESSAGE)

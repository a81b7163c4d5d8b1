"""The base of all tables' contracts."""

import pandera.polars as pa
import polars as pl

MESSAGE = pl.Struct({"role": pl.String, "content": pl.String})


class Table(pa.DataFrameModel):
    """Base of all tables: exactly the declared columns, no coercion."""

    class Config:
        strict = True
        coerce = False

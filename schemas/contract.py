"""The base of all tables' contracts."""

import pandera.polars as pa


class Table(pa.DataFrameModel):
    """Base of all tables: exactly the declared columns, no coercion."""

    class Config:
        strict = True
        coerce = False

"""What the contracts of tables are written with (Pandera, polars): the type of a column, what it
holds, and its checks in one place.

``string("the prompt: prompts.uid", unique=True)``: the text is for readers, and a comment in SQL;
``ge``, ``gt``, ``le``, ``lt`` and ``isin`` are checks of each value.
"""

from functools import partial
from typing import Any

import pandera.polars as pa
import polars as pl

from schemas.outcomes import FinishReason, Outcome
from schemas.table_list import MESSAGES

OUTCOMES = [outcome.value for outcome in Outcome]
FINISH_REASONS = [reason.value for reason in FinishReason]
_UNSCORABLE = [Outcome.TIMEOUT.value, Outcome.ERROR.value, Outcome.ABORTED.value]


def column(
    dtype: Any, holds: str, *, unique: bool = False, nullable: bool = False, **checks: Any
) -> pa.Column:
    """Return a column that ``holds`` what the text says, with Pandera's ``checks`` by name."""
    checked = [getattr(pa.Check, name)(limit) for name, limit in checks.items()]
    return pa.Column(dtype, checked, description=holds, unique=unique, nullable=nullable)


boolean, string = partial(column, pl.Boolean), partial(column, pl.String)
int32, int64 = partial(column, pl.Int32), partial(column, pl.Int64)
float64 = partial(column, pl.Float64)
booleans = partial(column, pl.List(pl.Boolean))
int32s, int64s = partial(column, pl.List(pl.Int32)), partial(column, pl.List(pl.Int64))
float32s, float64s = partial(column, pl.List(pl.Float32)), partial(column, pl.List(pl.Float64))
messages = partial(column, MESSAGES)


def table(*checks: pa.Check, **columns: pa.Column) -> pa.DataFrameSchema:
    """Return the contract of a table: exactly ``columns``, in order, and no coercion."""
    return pa.DataFrameSchema(dict(columns), checks=list(checks), strict=True)


def rows(name: str, hold: pl.Expr) -> pa.Check:
    """Return the check ``name`` of several columns: ``hold`` is true of every row."""
    return pa.Check(lambda data: data.lazyframe.select(hold), name=name)


def equal_lengths(name: str, *columns: str) -> pa.Check:
    """Return the check ``name`` that the lists of ``columns`` in a row are of one length."""
    first, *others = (pl.col(column).list.len() for column in columns)
    return rows(name, pl.all_horizontal(length == first for length in others))


def once(name: str, *columns: str) -> pa.Check:
    """Return the check ``name`` that no two rows have the same values of ``columns``."""
    return rows(name, pl.struct(columns).is_unique())


def finite(column: str) -> pl.Expr:
    """Return whether all numbers of a list are finite."""
    return pl.col(column).list.eval(pl.element().is_finite()).list.all()


NO_SCORE = rows(
    "unscorable_rows_have_no_score",
    pl.col("outcome").is_in(_UNSCORABLE) == pl.col("score").is_null(),
)

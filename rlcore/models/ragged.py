"""Ragged columns: polars list series to and from numpy arrays, one array per row."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa
from polars.datatypes import DataTypeClass


def to_arrays(series: pl.Series) -> list[np.ndarray]:
    """Return one array per row of a list series without nulls. Views of one buffer, not copies."""
    table = series.to_arrow()
    if isinstance(table, pa.ChunkedArray):
        table = table.combine_chunks()
    offsets = np.asarray(table.offsets)
    values = table.values.to_numpy(zero_copy_only=False)
    return [values[start:end] for start, end in pairwise(offsets)]


def from_arrays(
    name: str, arrays: Sequence[np.ndarray] | Sequence[list], dtype: pl.DataType | DataTypeClass
) -> pl.Series:
    """Return a list series of inner type ``dtype`` with one row per array."""
    lengths = np.fromiter(map(len, arrays), dtype=np.int64, count=len(arrays))
    flat = np.concatenate([np.asarray(a) for a in arrays]) if arrays else np.zeros(0)
    return from_flat(name, flat, lengths, dtype)


def from_flat(
    name: str, values: np.ndarray, lengths: np.ndarray, dtype: pl.DataType | DataTypeClass
) -> pl.Series:
    """Return a list series of inner type ``dtype``, ``lengths`` [rows] of the ``values`` each."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    nested = pa.LargeListArray.from_arrays(
        pa.array(offsets, pa.int64()), pl.Series("values", values).cast(dtype).to_arrow()
    )
    return pl.Series(name, nested, dtype=pl.List(dtype))


def to_floats(series: pl.Series) -> np.ndarray:
    """Return numbers or flags as [rows] float64, NaN where there is none."""
    return series.cast(pl.Float64).to_numpy()


def mean_of(values: pl.Series) -> float:
    """Return the mean of numbers, or the share of True flags."""
    return float(values.to_numpy().mean())

"""Columns of lists and numpy arrays: every row gets its own values back, and no other's."""

import numpy as np
import polars as pl
import pytest

from rlcore.models.ragged import from_arrays, mean_of, to_arrays


@pytest.mark.parametrize(
    "rows", [[[1, 2], [3]], [[], [1], []], [[]], [], [[1, 2, 3]], [[], []]], ids=str
)
def test_rows_survive_the_way_through_a_column(rows: list[list[int]]) -> None:
    series = from_arrays("ids", [np.array(row, dtype=np.int32) for row in rows], pl.Int32)
    assert (series.name, series.dtype) == ("ids", pl.List(pl.Int32))
    assert series.to_list() == rows
    assert [array.tolist() for array in to_arrays(series)] == rows


def test_a_part_of_a_column_has_its_own_rows() -> None:
    """Views of one buffer begin where the part begins, else rows shift against their ids."""
    series = pl.Series([[1.0], [2.0, 3.0], [], [4.0]], dtype=pl.List(pl.Float32))
    assert [a.tolist() for a in to_arrays(series[1:])] == [[2.0, 3.0], [], [4.0]]
    assert [a.tolist() for a in to_arrays(series.filter([True, False, True, True]))] == [
        [1.0],
        [],
        [4.0],
    ]


def test_a_column_put_together_from_chunks_is_read_whole() -> None:
    parts = [pl.Series([[i, i], [i]], dtype=pl.List(pl.Int64)) for i in range(3)]
    joined = pl.concat(parts, rechunk=False)
    assert joined.n_chunks() == 3
    assert [a.tolist() for a in to_arrays(joined)] == [[0, 0], [0], [1, 1], [1], [2, 2], [2]]


def test_values_are_cast_to_the_columns_type_and_keep_it() -> None:
    series = from_arrays("w", [[1, 2], [3]], pl.Float32)
    assert series.dtype == pl.List(pl.Float32)
    assert {array.dtype for array in to_arrays(series)} == {np.dtype(np.float32)}
    flags = from_arrays("m", [np.array([True, False])], pl.Boolean)
    assert to_arrays(flags)[0].tolist() == [True, False]


def test_flags_and_numbers_have_a_mean() -> None:
    assert mean_of(pl.Series([True, True, False, False])) == 0.5
    assert mean_of(pl.Series([1, 2, 6])) == 3.0

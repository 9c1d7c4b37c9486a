"""The table itself: rows, columns and what it promises about both."""

from __future__ import annotations

import datetime
from typing import Literal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from woodlot.data import column_readers
from woodlot.data.columns import CategoryColumn, NumericColumn, category_column
from woodlot.data.tables import Table, read_table
from woodlot.exceptions import DataError


def small_table() -> Table:
    numbers = NumericColumn(np.array([1.5, np.nan, -2.0, 7.0], dtype=np.float32))
    colours = category_column(np.array([1, 0, -1, 1]), ["red", "blue"])
    return Table(("size", "colour"), (numbers, colours), 4)


def test_category_column_is_sorted_compact_and_merged() -> None:
    column = category_column(np.array([3, 0, -1, 1, 4]), ["b", "c", "never", "a", "c", None])
    assert column.categories == ("a", "b", "c")
    assert column.codes.tolist() == [0, 1, -1, 2, 2]
    assert column.codes.dtype == np.int32


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([2, 0], [2, 0]),
        (np.array([True, False, False, True]), [0, 3]),
        (slice(1, 3), [1, 2]),
        ([3, 3, 3], [3, 3, 3]),
        (np.array([], dtype=np.int64), []),
    ],
)
def test_take(rows: object, expected: list[int]) -> None:
    table = small_table()
    taken = table.take(rows)
    assert taken.n_rows == len(expected)
    numbers, colours = taken.columns
    assert isinstance(numbers, NumericColumn)
    assert isinstance(colours, CategoryColumn)
    np.testing.assert_array_equal(numbers.values, table.columns[0].values[expected])  # type: ignore[union-attr]
    labels = ["blue", "red", None, "blue"]
    wanted = [labels[i] for i in expected]
    assert [None if c < 0 else colours.categories[c] for c in colours.codes] == wanted
    assert colours.categories == tuple(sorted({label for label in wanted if label is not None}))


def test_take_copies() -> None:
    table = small_table()
    taken = table.take(slice(None))
    assert not np.shares_memory(taken.columns[0].values, table.columns[0].values)  # type: ignore[union-attr]


def test_rows_that_are_not_there_are_missing_everywhere() -> None:
    taken = small_table().take_or_missing(np.array([3, -1, 0, -1]))
    numbers, colours = taken.columns
    assert isinstance(numbers, NumericColumn)
    assert isinstance(colours, CategoryColumn)
    np.testing.assert_array_equal(numbers.values, np.array([7.0, np.nan, 1.5, np.nan], np.float32))
    assert colours.codes.tolist() == [0, -1, 0, -1]
    assert colours.categories == ("blue",)
    nothing = small_table().take([]).take_or_missing(np.array([-1, -1]))
    assert nothing.n_rows == 2
    assert np.isnan(nothing.columns[0].values).all()  # type: ignore[union-attr]
    assert nothing.columns[1].codes.tolist() == [-1, -1]  # type: ignore[union-attr]


def test_a_column_that_is_skipped_may_be_of_any_type() -> None:
    data = {"when": [datetime.date(2020, 1, 1)] * 2, "size": [1.0, 2.0]}
    for table in (pd.DataFrame(data), pl.DataFrame(data), pa.table(data)):
        assert read_table(table, skip="when").names == ("size",)
    with pytest.raises(DataError, match="'when' of X holds dates"):
        read_table(pd.DataFrame(data))
    assert read_table(pa.table({"id": [1, 2, 3]}), skip="id").n_rows == 3


def test_take_refuses_rows_that_are_not_there() -> None:
    with pytest.raises(IndexError):
        small_table().take([4])


def test_select_and_column() -> None:
    table = small_table()
    assert table.select(["colour", "size"]).names == ("colour", "size")
    assert table.select(["colour"]).columns == (table.columns[1],)
    assert table.column("size") is table.columns[0]
    assert table.select([]).n_rows == 4


@pytest.mark.parametrize("ask", [lambda t: t.select(["size", "weight"]), lambda t: t.column("weight")])
def test_an_absent_column_is_named(ask: object) -> None:
    with pytest.raises(DataError, match="no column 'weight'; the columns are 'size', 'colour'"):
        ask(small_table())  # type: ignore[operator]


def test_select_refuses_duplicates() -> None:
    with pytest.raises(DataError, match="'size' more than once"):
        small_table().select(["size", "size"])


def test_long_lists_of_names_are_cut() -> None:
    column = NumericColumn(np.zeros(1, dtype=np.float32))
    table = Table(tuple(f"c{i}" for i in range(25)), (column,) * 25, 1)
    with pytest.raises(DataError, match="'c19' and 5 more"):
        table.column("x")


def test_tables_are_checked_when_built() -> None:
    column = NumericColumn(np.zeros(3, dtype=np.float32))
    with pytest.raises(DataError, match="2 names were given for 1 columns"):
        Table(("a", "b"), (column,), 3)
    with pytest.raises(DataError, match="'a' has 3 rows instead of 4"):
        Table(("a",), (column,), 4)
    with pytest.raises(DataError, match="'a' more than once"):
        Table(("a", "a"), (column, column), 3)


def test_tables_are_frozen() -> None:
    with pytest.raises(AttributeError):
        small_table().n_rows = 5  # type: ignore[misc]


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_arrays_are_read_by_threads(order: Literal["C", "F"], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_readers, "_VALUES_FOR_THREADS", 1)
    monkeypatch.setattr(column_readers, "_ROWS_OF_A_THREAD", 2048)
    values = np.array(np.random.default_rng(0).normal(size=(5000, 3)), order=order)
    table = read_table(values)
    for i, column in enumerate(table.columns):
        assert isinstance(column, NumericColumn)
        np.testing.assert_array_equal(column.values, values[:, i].astype(np.float32))
    values[4999, 1] = np.inf
    values[0, 2] = -1e300
    with pytest.raises(DataError, match="column '1'"):
        read_table(values)

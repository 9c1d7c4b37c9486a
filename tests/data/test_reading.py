"""Every kind of data that comes in gives the same table, or an error that names the column."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from woodlot.data.columns import CategoryColumn, NumericColumn
from woodlot.data.tables import Table, read_table
from woodlot.exceptions import DataError


def contents(table: Table) -> dict[str, list[Any]]:
    """A table as plain values that compare: NaN and missing are None."""
    result: dict[str, list[Any]] = {}
    for name, column in zip(table.names, table.columns, strict=True):
        if isinstance(column, NumericColumn):
            assert column.values.dtype == np.float32
            assert column.values.flags.c_contiguous
            result[name] = [None if np.isnan(v) else float(v) for v in column.values]
        else:
            assert isinstance(column, CategoryColumn)
            assert column.codes.dtype == np.int32
            assert column.categories == tuple(sorted(set(column.categories)))
            assert set(range(len(column.categories))) == set(column.codes[column.codes >= 0].tolist())
            result[name] = [None if c < 0 else column.categories[c] for c in column.codes]
    return result


RAW: dict[str, list[Any]] = {
    "float": [1.1, None, -3.5, 0.0],
    "int": [1, 2, None, 2**31 + 1],
    "bool": [True, None, False, True],
    "text": ["b", "a", None, "b"],
}
EXPECTED = {
    "float": [float(np.float32(1.1)), None, -3.5, 0.0],
    "int": [1.0, 2.0, None, float(np.float32(2**31 + 1))],
    "bool": [1.0, None, 0.0, 1.0],
    "text": ["b", "a", None, "b"],
}


class OnlyArrow:
    """A stranger's table with nothing but the Arrow interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


SOURCES: dict[str, Callable[[], Any]] = {
    "pyarrow table": lambda: pa.table(RAW),
    "pyarrow chunked": lambda: pa.concat_tables([pa.table(RAW).slice(0, 1), pa.table(RAW).slice(1)]),
    "pyarrow batch": lambda: pa.table(RAW).to_batches()[0],
    "any Arrow stream": lambda: OnlyArrow(pa.table(RAW)),
    "polars": lambda: pl.DataFrame(RAW),
    "pandas objects": lambda: pd.DataFrame({k: pd.Series(v, dtype=object) for k, v in RAW.items()}),
    "pandas nullable": lambda: pd.DataFrame(RAW).astype({"int": "Int64", "bool": "boolean", "text": "string"}),
    "pandas Arrow types": lambda: pa.table(RAW).to_pandas(types_mapper=pd.ArrowDtype),
    "pandas categories": lambda: pd.DataFrame(RAW).astype({"bool": "boolean", "text": "category"}),
    "polars categories": lambda: pl.DataFrame(RAW).with_columns(pl.col("text").cast(pl.Categorical)),
    "polars enum": lambda: pl.DataFrame(RAW).with_columns(pl.col("text").cast(pl.Enum(["z", "b", "a"]))),
    "pyarrow dictionary": lambda: pa.table({**RAW, "text": pa.array(RAW["text"]).dictionary_encode()}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_table(source: str) -> None:
    table = read_table(SOURCES[source]())
    assert contents(table) == EXPECTED
    assert (table.n_rows, table.positional) == (4, False)


def test_object_array_gives_the_same_columns() -> None:
    array = np.array([list(row) for row in zip(*RAW.values(), strict=True)], dtype=object)
    table = read_table(array)
    assert list(contents(table).values()) == list(EXPECTED.values())
    assert table.names == ("0", "1", "2", "3")
    assert table.positional


def test_a_table_is_returned_as_it_is() -> None:
    table = read_table([[1.0]])
    assert read_table(table) is table


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_]),
        st.tuples(st.integers(0, 6), st.integers(0, 4)),
        elements=None,
    )
)
def test_arrays_are_cast_as_numpy_casts(array: np.ndarray[Any, Any]) -> None:
    with np.errstate(over="ignore"):
        wanted = array.astype(np.float32)
    infinite = np.isinf(wanted)
    variants = [array, np.asfortranarray(array), array.astype(object)]
    for variant in variants:
        if infinite.any():
            column = int(np.flatnonzero(infinite.any(axis=0))[0])
            with pytest.raises(ValueError, match=rf"infinity or a value too large .* column '{column}'"):
                read_table(variant)
            continue
        table = read_table(variant)
        assert table.n_rows == array.shape[0]
        assert len(table.columns) == array.shape[1]
        for f, column_ in enumerate(table.columns):
            assert isinstance(column_, NumericColumn)
            np.testing.assert_array_equal(column_.values, wanted[:, f])


def test_arrays_of_many_rows_and_strides() -> None:
    array = np.random.default_rng(0).normal(size=(5000, 7))
    for variant in (array, array[::-1], array[:, ::2], array[::3, 1:]):
        table = read_table(variant)
        np.testing.assert_array_equal(
            np.stack([c.values for c in table.columns]),  # type: ignore[union-attr]
            variant.T.astype(np.float32),
        )


@pytest.mark.parametrize("order", ["C", "F"])
def test_reading_copies(order: Any) -> None:
    array = np.ones((3, 1), dtype=np.float32, order=order)
    frame = pd.DataFrame({"a": np.ones(3, dtype=np.float32)})
    arrow = pa.table({"a": pa.array(np.ones(3, dtype=np.float32))})
    tables = [read_table(array), read_table(frame), read_table(arrow)]
    array[:] = 2
    for table in tables:
        (column,) = table.columns
        assert isinstance(column, NumericColumn)
        assert column.values.tolist() == [1, 1, 1]
        assert column.values.flags.writeable  # one kind of array for the kernels, whatever the source


def test_nested_lists() -> None:
    assert contents(read_table([[1, 2.5], [3, 4]])) == {"0": [1.0, 3.0], "1": [2.5, 4.0]}
    assert contents(read_table([["x", 1], ["y", 2]])) == {"0": ["x", "y"], "1": [1.0, 2.0]}


def test_masked_arrays() -> None:
    array = np.ma.masked_array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])
    assert contents(read_table(array)) == {"0": [1.0, 3.0], "1": [None, 4.0]}
    words = np.ma.masked_array([["a", "b"], ["c", "d"]], mask=[[False, True], [False, False]])
    assert contents(read_table(words)) == {"0": ["a", "c"], "1": [None, "d"]}


def test_missing_markers_in_object_arrays() -> None:
    array = np.array([[1, "a"], [pd.NA, pd.NA], [np.nan, None], [Decimal("2.5"), "b"]], dtype=object)
    assert contents(read_table(array)) == {"0": [1.0, None, None, 2.5], "1": ["a", None, None, "b"]}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([None, None]), [None, None]),
        (pa.array([Decimal("1.25"), None]), [1.25, None]),
        (pa.array([1.5, None], pa.float16()), [1.5, None]),
        (pa.array([2**63, None], pa.uint64()), [float(2**63), None]),
        # Rounded once: by way of float64 this would be 2**60 instead.
        (pa.array([2**60 + 2**36 + 1, None]), [float(2**60 + 2**37), None]),
        (pa.array(["x", None], pa.string_view()), ["x", None]),
        (pa.array(["x", None], pa.large_string()), ["x", None]),
        (pa.array([], pa.string()), []),
        (pa.array([10, 9, None]).dictionary_encode(), ["10", "9", None]),
        (pa.array([True, None]).dictionary_encode(), ["True", None]),
        (pa.DictionaryArray.from_arrays([0, 1, 2], pa.array(["x", None, "y"])), ["x", None, "y"]),
        (
            pa.chunked_array([pa.array(["b"]).dictionary_encode(), pa.array(["a"]).dictionary_encode()]),
            ["b", "a"],
        ),
    ],
)
def test_arrow_types(values: Any, expected: list[Any]) -> None:
    assert contents(read_table(pa.table({"a": values}))) == {"a": expected}


def test_polars_decimals_and_nulls() -> None:
    frame = pl.DataFrame({"d": pl.Series(["1.5", None]).cast(pl.Decimal(10, 2)), "n": [None, None]})
    assert contents(read_table(frame)) == {"d": [1.5, None], "n": [None, None]}


def test_pandas_categories_of_any_kind() -> None:
    frame = pd.DataFrame(
        {
            "ints": pd.Categorical([10, 9, None]),
            "mixed": pd.Categorical([1, "a", None]),
            "unused": pd.Categorical(["a", "c", None], categories=["c", "b", "a"], ordered=True),
        }
    )
    assert contents(read_table(frame)) == {
        "ints": ["10", "9", None],
        "mixed": ["1", "a", None],
        "unused": ["a", "c", None],
    }


def test_pandas_labels_become_strings() -> None:
    frame = pd.DataFrame([[1, 2]], columns=[10, ("a", 1)])
    assert read_table(frame).names == ("10", "('a', 1)")
    assert not read_table(frame).positional
    with pytest.raises(DataError, match="X has '1' more than once"):
        read_table(pd.DataFrame([[1, 2]], columns=[1, "1"]))


def test_pandas_subclasses_and_index() -> None:
    class Frame(pd.DataFrame):
        pass

    assert contents(read_table(Frame({"a": [1.0, 2.0]}, index=["x", "y"]))) == {"a": [1.0, 2.0]}


@pytest.mark.parametrize(
    "data",
    [
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
    ],
)
def test_duplicate_names(data: Any) -> None:
    with pytest.raises(DataError, match="Column names must be unique, but rows has 'a' more than once"):
        read_table(data, what="rows")


def test_empty_tables() -> None:
    for data in (np.empty((0, 2)), pd.DataFrame({"a": [], "b": []}), pa.table({"a": [], "b": []})):
        table = read_table(data)
        assert (table.n_rows, len(table.columns)) == (0, 2)
    for data in (np.empty((3, 0)), pd.DataFrame(index=range(3))):
        table = read_table(data)
        assert (table.n_rows, len(table.columns)) == (3, 0)
    assert read_table(pl.DataFrame()).names == ()
    assert contents(read_table(pl.DataFrame({"a": pl.Series([], dtype=pl.Categorical)}))) == {"a": []}


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39, -1e39])
@pytest.mark.parametrize(
    "make",
    [
        lambda v: np.array([[0.0, 1.0], [2.0, v]]),
        lambda v: np.array([[0.0, 1.0], [2.0, v]], dtype=object),
        lambda v: np.array([["a", 1.0], ["b", v]], dtype=object),
        lambda v: pd.DataFrame({"0": [0.0, 2.0], "1": [1.0, v]}),
        lambda v: pl.DataFrame({"0": [0.0, 2.0], "1": [None, v]}),
        lambda v: pa.table({"0": [0.0, 2.0], "1": [1.0, v]}),
    ],
)
def test_infinity(make: Callable[[float], Any], value: float) -> None:
    words = r"Input rows contains infinity or a value too large for dtype\('float32'\)\. .* column '1'"
    with pytest.raises(ValueError, match=words):
        read_table(make(value), what="rows")


def test_integers_too_large_for_a_float() -> None:
    with pytest.raises(ValueError, match=r"infinity or a value too large .* column '0'"):
        read_table(np.array([[10**400]], dtype=object))


TIMES = {
    "date": dt.date(2020, 1, 1),
    "datetime": dt.datetime(2020, 1, 1, 12),
    "time": dt.time(12),
    "timedelta": dt.timedelta(days=1),
}


@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize(
    "make",
    [
        lambda v: pa.table({"when": [v]}),
        lambda v: pl.DataFrame({"when": [v]}),
        lambda v: pd.DataFrame({"when": [v]}),
        lambda v: pd.DataFrame({"when": pd.Series([v], dtype=object)}),
    ],
)
def test_dates_and_times(make: Callable[[Any], Any], kind: str) -> None:
    with pytest.raises(DataError, match=r"Column 'when' of X holds dates or times .* day of the week"):
        read_table(make(TIMES[kind]))


def test_dates_in_arrays() -> None:
    for array in (
        np.array([["2020-01-01"]], dtype="datetime64[D]"),
        np.array([[3]], dtype="timedelta64[s]"),
        *(np.array([[v]], dtype=object) for v in TIMES.values()),
        np.array([["a"], [np.datetime64("2020-01-01")]], dtype=object),
    ):
        with pytest.raises(DataError, match="Column '0' of X holds dates or times"):
            read_table(array)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (pa.table({"a": [1], "b": [[1, 2]]}), "Column 'b' of X has the type list<"),
        (pa.table({"b": [{"x": 1}]}), "Column 'b' of X has the type struct<"),
        (pa.table({"b": [b"bytes"]}), "Column 'b' of X has the type binary"),
        (pl.DataFrame({"b": [[1], [2]]}), "Column 'b' of X has the type large_list<"),
        (
            pl.DataFrame({"b": pl.Series([1, "a"], dtype=pl.Object)}),
            "Column 'b' of X has the type fixed_size_binary",
        ),
        (pd.DataFrame({"b": [[1], [2]]}), "Column 'b' of X has the type list<"),
        (pd.DataFrame({"b": [1 + 2j]}), "Column 'b' of X has the type complex128"),
        (
            pd.DataFrame({"b": pd.Series([1 + 2j], dtype=object)}),
            "Column 'b' of X has the type object of complex",
        ),
        (
            pd.DataFrame({"b": pd.period_range("2020", periods=2, freq="D")}),
            "Column 'b' of X has the type extension",
        ),
        (np.array([[b"x"]]), "Column '0' of X has the type |S1"),
        (np.zeros((2, 2), dtype=[("x", float)]), r"Column '0' of X has the type \[\('x'"),
        (np.array([[1j]]), "Complex data not supported: X has the type complex128"),
        (np.array([[1j, "a"]], dtype=object), "Complex data not supported: column '0' of X"),
    ],
)
def test_types_that_no_tree_can_split(data: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_table(data)


@pytest.mark.parametrize(
    ("data", "kinds"),
    [
        (pd.DataFrame({"1": pd.Series([1, "a", None], dtype=object)}), "int, str"),
        (pd.DataFrame({"1": pd.Series(["a", 1.5], dtype=object)}), "float, str"),
        (pd.DataFrame({"1": pd.Series([True, 2], dtype=object)}), "bool, int"),
        (np.array([[0, 1], [0, "a"], [0, None]], dtype=object), "int, str"),
    ],
)
def test_mixed_types(data: Any, kinds: str) -> None:
    with pytest.raises(DataError, match=rf"Column '1' of X mixes values of different types \({kinds}\)"):
        read_table(data)


def test_objects_that_are_neither_strings_nor_numbers() -> None:
    # scikit-learn's own check of estimators looks for this type and these words.
    with pytest.raises(TypeError, match=r"Column '1' of X: argument must be a string or a real number, not 'dict'"):
        read_table(np.array([[1, {"foo": "bar"}]], dtype=object))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (np.zeros(3), r"Expected 2D array, got 1D array instead[\s\S]*Reshape your data"),
        (pd.Series([1, 2]), r"Expected 2D array, got 1D array instead[\s\S]*Reshape your data"),
        (3.0, "Expected 2D array, got scalar array instead"),
        (np.zeros((2, 2, 2)), "Found array with dim 3 for X, while dim <= 2 is required"),
        ([[1, 2], [3]], "X could not be read as a two-dimensional array"),
        (pl.Series([1, 2]), "X could not be read as a table through its Arrow interface"),
        (pa.chunked_array([[1, 2]]), "X could not be read as a table through its Arrow interface"),
    ],
)
def test_shapes_that_are_no_tables(data: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_table(data)


@pytest.mark.parametrize("make", [scipy.sparse.csr_array, scipy.sparse.coo_matrix])
def test_sparse_matrices(make: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="Sparse data was passed for X, but dense data is required"):
        read_table(make(np.eye(2)))


def test_heavy_libraries_are_imported_late() -> None:
    code = (
        "import sys, numpy as np; from woodlot.data.tables import read_table; read_table(np.ones((2, 2)));"
        "print(sorted({'pandas', 'polars', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

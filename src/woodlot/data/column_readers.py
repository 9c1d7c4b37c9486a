"""Columns read from plain arrays, which have no names, and from data frames and Arrow tables."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import (
    CategoryColumn,
    Column,
    NumericColumn,
    category_column,
    infinite_value,
    mixed_types,
    numeric_column,
    time_value,
    unusable_type,
)
from woodlot.data.doubtful import doubt_text
from woodlot.exceptions import DataError

# Rows copied at a time: narrow enough that both layouts of the piece stay in the cache.
_ROWS_AT_ONCE = 1024
_ROWS_OF_A_THREAD = 1 << 15
_VALUES_FOR_THREADS = 1 << 21
"""Tables of fewer values are copied before threads have started."""
_MOST_THREADS = 8


def array_columns(data: Any, what: str) -> tuple[tuple[Column, ...], int]:
    """Return the columns of an array-like and its number of rows."""
    try:
        array = data if isinstance(data, np.ndarray) else np.asarray(data)
    except ValueError as error:  # nested sequences of different lengths
        raise DataError(f"{what} could not be read as a two-dimensional array: {error}") from error
    _require_two_dimensions(array, what)
    kind = array.dtype.kind
    if isinstance(array, np.ma.MaskedArray) and kind in "biufOU":
        masked = np.ma.getmaskarray(array)
        array = np.array(np.ma.getdata(array), dtype=np.float64 if kind in "biuf" else object)
        array[masked] = None  # which is NaN among numbers
        kind = array.dtype.kind
    if kind in "biuf":
        return _numeric_columns(array, what), len(array)
    if kind == "c":
        raise DataError(f"Complex data not supported: {what} has the type {array.dtype}.")
    if kind in "OUT":
        objects = array.astype(object)
        return tuple(object_column(objects[:, i], str(i), what) for i in range(array.shape[1])), len(array)
    raise (time_value if kind in "mM" else unusable_type)("0", what, str(array.dtype))


def _require_two_dimensions(array: NDArray[Any], what: str) -> None:
    # scikit-learn's words, which its estimator checks look for.
    if array.ndim < 2:
        found = "1D array" if array.ndim else "scalar array"
        raise DataError(
            f"Expected 2D array, got {found} instead:\narray={array}.\n"
            "Reshape your data either using array.reshape(-1, 1) if your data has a single feature or "
            "array.reshape(1, -1) if it contains a single sample."
        )
    if array.ndim > 2:
        raise DataError(f"Found array with dim {array.ndim} for {what}, while dim <= 2 is required.")


def _numeric_columns(array: NDArray[Any], what: str) -> tuple[Column, ...]:
    n_rows, n_columns = array.shape
    block = np.empty((n_columns, n_rows), dtype=np.float32)

    def copy(first: int) -> None:
        with np.errstate(over="ignore"):  # becomes infinite, which is refused below
            for start in range(first, min(first + _ROWS_OF_A_THREAD, n_rows), _ROWS_AT_ONCE):
                block[:, start : start + _ROWS_AT_ONCE] = array[start : start + _ROWS_AT_ONCE].T

    def is_infinite(i: int) -> bool:
        return bool(np.isinf(block[i]).any())

    parts = range(0, n_rows, _ROWS_OF_A_THREAD)
    if array.size < _VALUES_FOR_THREADS:
        for first in parts:
            copy(first)
        infinite = [is_infinite(i) for i in range(n_columns)]
    else:  # most of the time goes into memory that is touched for the first time
        with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1, _MOST_THREADS)) as threads:
            list(threads.map(copy, parts))
            infinite = list(threads.map(is_infinite, range(n_columns)))
    if any(infinite):
        raise infinite_value(str(infinite.index(True)), what)
    return tuple(NumericColumn(values) for values in block)


def object_column(values: NDArray[np.object_], name: str, what: str) -> Column:
    """Read Python objects: numbers where all of them convert, else categories if all are strings."""
    try:
        numbers = values.astype(np.float64)
    except OverflowError as error:
        raise infinite_value(name, what) from error
    except (TypeError, ValueError):
        return _non_numeric_column(values, name, what)
    return numeric_column(numbers, name=name, what=what)


def _non_numeric_column(values: NDArray[np.object_], name: str, what: str) -> Column:
    present = np.array([not is_missing(value) for value in values], dtype=np.bool_)
    kinds = {type(value) for value in values[present]}
    for kind in kinds:
        if issubclass(kind, datetime.date | datetime.time | datetime.timedelta | np.datetime64 | np.timedelta64):
            raise time_value(name, what, kind.__name__)
        if issubclass(kind, complex | np.complexfloating):
            raise DataError(f"Complex data not supported: column {name!r} of {what} holds complex numbers.")
        if not issubclass(kind, str) and not hasattr(kind, "__float__"):
            raise TypeError(
                f"Column {name!r} of {what}: argument must be a string or a real number, not {kind.__name__!r}"
            )
    if all(issubclass(kind, str) for kind in kinds):
        labels, positions = np.unique(values[present].astype(str), return_inverse=True)
        codes = np.full(len(values), -1, dtype=np.int32)
        codes[present] = positions
        found = category_column(codes, [str(label) for label in labels])
        doubt_text(found, name, what)
        return found
    if any(issubclass(kind, str) for kind in kinds):
        raise mixed_types(name, what, sorted(kind.__name__ for kind in kinds))
    # Numbers only, with markers of missing values that numpy cannot convert.
    numbers = np.full(len(values), np.nan)
    numbers[present] = values[present].astype(np.float64)
    return numeric_column(numbers, name=name, what=what)


def is_missing(value: object) -> bool:
    """Whether a Python object stands for a missing value: None, NaN, NaT or pandas.NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


# --- data frames and Arrow tables ---


def is_pandas_frame(data: object) -> bool:
    """Whether data is a pandas DataFrame or of a class derived from it, told without importing pandas."""
    return any(
        kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas" for kind in type(data).__mro__
    )


def pandas_columns(frame: Any, names: Sequence[str], what: str) -> tuple[Column, ...]:
    """Return the columns of a pandas DataFrame under these names."""
    return tuple(_pandas_column(frame.iloc[:, i], name, what) for i, name in enumerate(names))


def _pandas_column(series: Any, name: str, what: str) -> Column:
    import pyarrow as pa

    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf":
        return numeric_column(series.to_numpy(), name=name, what=what)
    if str(series.dtype) == "category":  # by hand, because Arrow has no dictionaries of mixed types
        return category_column(series.cat.codes.to_numpy(), [str(value) for value in series.cat.categories])
    try:
        array = pa.Array.from_pandas(series)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        kinds = sorted({type(value).__name__ for value in series if not is_missing(value)})
        if len(kinds) > 1:
            raise mixed_types(name, what, kinds) from error
        raise unusable_type(name, what, f"{series.dtype} of {kinds[0]}" if kinds else str(series.dtype)) from error
    chunked = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    return _arrow_column(chunked, name, what)


def arrow_columns(table: Any, what: str) -> tuple[Column, ...]:
    """Return the columns of a pyarrow Table."""
    return tuple(
        _arrow_column(column, name, what) for name, column in zip(table.column_names, table.itercolumns(), strict=True)
    )


def _arrow_column(column: Any, name: str, what: str) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if is_text:
        found = _dictionary_column(pc.dictionary_encode(column))
        doubt_text(found, name, what)
        return found
    if pa.types.is_dictionary(kind):
        return _dictionary_column(column)
    if pa.types.is_null(kind) or pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_temporal(kind):
        raise time_value(name, what, str(kind))
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise unusable_type(name, what, str(kind))
    # The fill keeps integers integers, so that they are rounded to float32 once and as in a numpy array.
    missing = column.is_null().to_numpy() if column.null_count else None
    filled = column.fill_null(pa.scalar(0).cast(column.type)) if column.null_count else column
    return numeric_column(filled.to_numpy(), name=name, what=what, missing=missing)


def _dictionary_column(column: Any) -> CategoryColumn:
    # Chunks may disagree on their dictionaries, which then become one.
    chunks = column.unify_dictionaries().chunks
    if not chunks:
        return category_column(np.empty(0, dtype=np.int32), [])
    codes = np.concatenate(
        [chunk.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False) for chunk in chunks]
    )
    values = chunks[0].dictionary.to_pylist()
    return category_column(codes, [None if is_missing(value) else str(value) for value in values])

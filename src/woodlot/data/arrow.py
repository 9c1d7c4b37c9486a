"""Data frames and Arrow tables: columns with names and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from woodlot.data.arrays import is_missing
from woodlot.data.columns import (
    CategoryColumn,
    Column,
    category_column,
    mixed_types,
    numeric_column,
    time_value,
    unusable_type,
)
from woodlot.data.doubtful import doubt_text


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

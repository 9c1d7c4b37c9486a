"""Single columns as they are: ids and labels, which are not features and must not be rounded to float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError


def column_values(data: Any, name: str, what: str) -> NDArray[Any]:
    """One column of a pandas, polars or Arrow table, or anything with the Arrow interface, as an array.

    Text becomes an object array; null is None or NaN.
    """
    names = list(getattr(data, "column_names", None) or getattr(data, "columns", None) or [])
    if not names:
        import pyarrow

        data = pyarrow.table(data)
        names = list(data.column_names)
    matching = [n for n in names if str(n) == name]
    if not matching:
        raise DataError(f"{what} has no column {name!r}; it has {[str(n) for n in names]}")
    column = data[matching[0]]
    if hasattr(column, "combine_chunks"):  # Arrow: to_numpy would make integers with nulls floats in silence
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)


def is_null(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values are missing."""
    if values.dtype.kind in "fc":
        return np.isnan(values)
    if values.dtype.kind == "O":
        return np.array([v is None or v != v for v in values], bool)  # noqa: PLR0124 - NaN differs from itself
    return np.zeros(len(values), bool)


def id_values(data: Any, name: str, what: str) -> NDArray[Any]:
    """An id column: whole numbers or text, none missing, none twice."""
    values = column_values(data, name, what)
    missing = int(is_null(values).sum())
    if missing:
        raise DataError(f"{what} has {missing} rows without an id in column {name!r}; drop them or give them ids")
    if values.dtype.kind == "f" and np.all(values == np.floor(values)):
        values = values.astype(np.int64)
    if values.dtype.kind == "O" or values.dtype.kind == "U":
        values = np.array([str(v) for v in values], dtype=str)
    elif values.dtype.kind not in "iu":
        raise DataError(f"ids must be whole numbers or text; column {name!r} of {what} is {values.dtype}")
    unique, counts = np.unique(values, return_counts=True)
    if len(unique) < len(values):
        repeated = unique[counts > 1]
        raise DataError(
            f"{what} has {len(repeated)} ids more than once in column {name!r}, such as {repeated[0]}; "
            "keep one row per id"
        )
    return values

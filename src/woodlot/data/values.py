"""Single columns as they are: ids, labels and weights are not features and are not rounded to float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.column_readers import is_missing, is_pandas_frame
from woodlot.exceptions import DataError


def column_values(data: Any, name: str, what: str) -> NDArray[Any]:
    """One column of a table as an array: text as Python objects, null as None or NaN."""
    if is_pandas_frame(data):
        names = [str(label) for label in data.columns]
        require_column(name, names, what)
        return np.asarray(data.iloc[:, names.index(name)].to_numpy())
    import pyarrow as pa

    table = pa.table(data)
    require_column(name, table.column_names, what)
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return np.asarray(column.to_numpy())


def require_column(name: str, names: Sequence[str], what: str) -> None:
    """Refuse a column that is not there."""
    if name not in names:
        raise DataError(f"{what} has no column {name!r}; it has {list(names)}")


def is_null(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values are missing."""
    if values.dtype.kind in "fc":
        return np.asarray(np.isnan(values), np.bool_)
    if values.dtype.kind in "mM":
        return np.asarray(np.isnat(values), np.bool_)
    if values.dtype.kind == "O":
        return np.array([is_missing(value) for value in values], np.bool_)
    return np.zeros(len(values), np.bool_)


def natural_type(values: NDArray[Any]) -> NDArray[Any]:
    """Python objects that are all truth values or all numbers as an array of them; others as they are."""
    if values.dtype.kind != "O" or len(values) == 0:
        return values
    kinds = {type(value) for value in values}
    if all(issubclass(kind, bool | np.bool_) for kind in kinds):
        return values.astype(np.bool_)
    if any(issubclass(kind, bool | np.bool_) for kind in kinds):
        return values
    try:
        if all(issubclass(kind, int | np.integer) for kind in kinds):
            return values.astype(np.int64)
        if all(issubclass(kind, int | float | np.integer | np.floating) for kind in kinds):
            return values.astype(np.float64)
    except OverflowError:  # whole numbers of more than 64 bits stay what they are
        pass
    return values

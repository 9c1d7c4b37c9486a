"""Single columns as they are: ids, labels and weights, which are not features and must not be rounded to float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.arrays import is_missing
from woodlot.data.arrow import is_pandas_frame
from woodlot.exceptions import DataError

_EXACT_IN_A_FLOAT = 2**53
"""Whole numbers below this are told apart by a float64."""


def column_values(data: Any, name: str, what: str) -> NDArray[Any]:
    """One column of a table as an array: text as Python objects, null as None or NaN."""
    if is_pandas_frame(data):
        names = [str(label) for label in data.columns]
        _require_column(name, names, what)
        return np.asarray(data.iloc[:, names.index(name)].to_numpy())
    import pyarrow as pa

    table = pa.table(data)
    _require_column(name, table.column_names, what)
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return np.asarray(column.to_numpy())


def _require_column(name: str, names: list[str], what: str) -> None:
    if name not in names:
        raise DataError(f"{what} has no column {name!r}; it has {names}")


def is_null(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values are missing."""
    if values.dtype.kind in "fc":
        return np.isnan(values)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype.kind == "O":
        return np.array([is_missing(value) for value in values], np.bool_)
    return np.zeros(len(values), np.bool_)


def natural_type(values: NDArray[Any]) -> NDArray[Any]:
    """Python objects that are all truth values, or all numbers, as an array of them; anything else as it is."""
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


def id_values(data: Any, name: str, what: str) -> NDArray[Any]:
    """An id column: whole numbers or text, none missing, none twice."""
    values = column_values(data, name, what)
    missing = int(is_null(values).sum())
    if missing:
        raise DataError(f"{what} has {missing} rows without an id in column {name!r}; drop them or give them ids")
    values = _whole_numbers_or_text(natural_type(values), name, what)
    unique, counts = np.unique(values, return_counts=True)
    if len(unique) < len(values):
        repeated = unique[counts > 1]
        raise DataError(
            f"{what} has {len(repeated)} ids more than once in column {name!r}, such as {repeated[0]}; "
            "keep one row per id"
        )
    return values


def _whole_numbers_or_text(values: NDArray[Any], name: str, what: str) -> NDArray[Any]:
    kind = values.dtype.kind
    if kind in "iu":
        return values if values.dtype == np.uint64 and values.max(initial=0) >= 2**63 else values.astype(np.int64)
    if kind == "f" and ((values == np.floor(values)) & (np.abs(values) < _EXACT_IN_A_FLOAT)).all():
        return values.astype(np.int64)
    if kind in "OUT" and all(isinstance(value, str) for value in values.tolist()):
        return values.astype(np.str_)
    kinds = sorted({type(value).__name__ for value in values.tolist()}) if kind == "O" else [str(values.dtype)]
    raise DataError(
        f"ids must all be whole numbers or all be text; column {name!r} of {what} holds {', '.join(kinds)}: "
        "convert them, for instance to text"
    )

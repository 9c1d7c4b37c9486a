"""A client's columns on the schema of extra-trees: what was declared decides, and what it does not cover is counted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn, Column, NumericColumn
from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.rows.row_messages import Kind


def spread(start: NDArray[np.int64], length: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All places of some ranges, and the number of the range that each is of."""
    of = np.repeat(np.arange(len(start)), length)
    before = np.concatenate([[0], np.cumsum(length)])[:-1]
    return of, (start - before)[of] + np.arange(len(of))


def kind_by_type(column: Column) -> Kind:
    """A column's kind by its type, whatever is in it."""
    return "category" if isinstance(column, CategoryColumn) else "number"


def fit_column(
    column: Column, categories: tuple[str, ...] | None, knots: tuple[float, ...] | None
) -> tuple[Column, int]:
    """The column on the common schema, and how many of its values that does not cover."""
    if categories is None:
        if isinstance(column, CategoryColumn):
            if column.categories:
                raise RemoteProtocolError("the schema calls a column of categories numbers")
            return NumericColumn(np.full(len(column), np.nan, np.float32)), 0
        outside = 0
        if knots:
            outside = int((column.values < min(knots)).sum() + (column.values > max(knots)).sum())
        return column, outside
    if list(categories) != sorted(set(categories)):
        raise RemoteProtocolError("the categories of the schema are not in ascending order")
    if not isinstance(column, CategoryColumn):
        if not np.isnan(column.values).all():
            raise RemoteProtocolError("the schema calls a column of numbers categories")
        return CategoryColumn(np.full(len(column), -1, np.int32), categories), 0
    place = {category: code for code, category in enumerate(categories)}
    recode = np.array([*(place.get(name, -1) for name in column.categories), -1], np.int32)
    codes = recode[column.codes]
    return CategoryColumn(codes, categories), int(((codes < 0) & (column.codes >= 0)).sum())

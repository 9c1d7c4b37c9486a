"""The index of a pandas frame: it may hold the ids of the rows, and it tells when two tables have different rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from woodlot.data.column_readers import is_pandas_frame
from woodlot.exceptions import DataError


def index_as_column(data: Any, id: object) -> Any:
    """A pandas frame whose index has the name of the id column, with that index as a column; else the data as it is."""
    if not isinstance(id, str) or not is_pandas_frame(data):
        return data
    if id in {str(label) for label in data.columns} or id not in data.index.names:
        return data
    return data.reset_index(level=id)


def require_equal_indexes(tables: Mapping[str, Any]) -> None:
    """Refuse to join tables by position where their indexes say that the rows differ.

    A table without an index (polars, Arrow) has its rows numbered from 0, as pandas numbers them by default.
    """
    indexes = {name: data.index if is_pandas_frame(data) else None for name, data in tables.items()}
    (first, known), *others = indexes.items()
    for name, index in others:
        if not _are_equal(known, index):
            raise DataError(
                f"the tables of {first} and {name} have different indexes, so the same position may hold different "
                "rows. If the index identifies the rows, give it the same name in every table "
                "(frame.index.name = 'id') and pass that as id='id'; if the rows do correspond by position, pass "
                "frame.reset_index(drop=True)"
            )


def _are_equal(one: Any, other: Any) -> bool:
    if one is None or other is None:
        index = other if one is None else one
        return index is None or (index.nlevels == 1 and np.array_equal(index.to_numpy(), np.arange(len(index))))
    return bool(one.equals(other))

"""Thresholds on a public grid: so that none is made of a client's values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from woodlot.data.columns import Column, NumericColumn
from woodlot.data.tables import Table
from woodlot.exceptions import DataError
from woodlot.protocols.rows.schema import CommonSchema

GRID_CELLS = 1024
"""Cells of a declared range, between whose middles thresholds lie."""


def check_grid(grid: Mapping[str, tuple[float, float]] | None, schema: CommonSchema) -> None:
    """Every column of numbers has a range, and no other column.

    Raises
    ------
    DataError
        Names the columns.
    """
    if grid is None:
        return
    numbers = [name for name, found in zip(schema.names, schema.categories, strict=True) if found is None]
    lacking, extra = [n for n in numbers if n not in grid], [n for n in grid if n not in numbers]
    if lacking or extra:
        raise DataError(
            f"the grid of thresholds needs the range of every column of numbers: it lacks {lacking}, and has {extra} "
            "besides"
        )


def snap_table(table: Table, grid: Mapping[str, tuple[float, float]]) -> Table:
    """Numbers as the middles of their cells: a threshold halfway between two of them lies on the grid.

    A number on an edge belongs to the cell below it, as it goes left at a threshold that is equal to it.
    """
    columns: list[Column] = []
    for name, column in zip(table.names, table.columns, strict=True):
        if isinstance(column, NumericColumn) and name in grid:
            low, high = grid[name]
            step = (high - low) / GRID_CELLS
            cell = np.clip(np.ceil((column.values.astype(np.float64) - low) / step) - 1, 0, GRID_CELLS - 1)
            columns.append(NumericColumn((low + (cell + 0.5) * step).astype(np.float32)))
        else:
            columns.append(column)
    return Table(table.names, tuple(columns), table.n_rows, table.positional)

"""Bins as coarse as a node is small: the rule ``min_cell``, the same for open and hidden training.

A node of m rows (different rows that its tree has drawn) shows at most m // min_cell cells of a column; missing values
are one of them. Cells are runs of 2**shift neighbouring codes, so that only the upper bits of a code need be known. The
shift is the smallest that is enough, and follows from m and the column's number of codes. Codes of categories stand in
the order of their names, so that a cell is a group of categories that does not depend on any row::

    codes           0 1 2 3 4 5 6 7 8 9   missing = 10
    cells, shift 2  0 0 0 0 1 1 1 1 2 2   missing = 3
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LEAST_CELL = 20
"""The smallest ``min_cell`` of a hidden training."""
USUAL_CELL = 150
"""``min_cell`` of a hidden training where nothing else is said and the table has rows enough."""
PART_OF_TABLE = 6
"""Where that is less, ``min_cell`` is this part of all rows: a tree draws 63 % of them and must be able to split."""


def cell_for(n_rows: int) -> int:
    """``min_cell="auto"``: 150 rows, or a sixth of a table of fewer than 900, and 20 at least.

    Measured against the strongest attack of the leak test (docs/decisions/0032-cells-by-the-size-of-the-table.md).
    """
    return max(LEAST_CELL, min(USUAL_CELL, n_rows // PART_OF_TABLE))


def bit_lengths(numbers: Ints) -> Ints:
    """Bits of each of some whole numbers from 0 to 2**53."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64)


def shifts(n_rows: Ints, n_codes: Ints, has_missing: NDArray[Any], min_cell: int) -> Ints:
    """How many low bits are dropped from the codes of columns at nodes; all arrays as they broadcast.

    Nodes of fewer than ``2 * min_cell`` rows must be leaves.
    """
    if min_cell == 0:
        return np.zeros(np.broadcast_shapes(n_rows.shape, n_codes.shape), np.int64)
    of_values = np.maximum(n_rows // min_cell - has_missing.astype(np.int64), 1)
    return bit_lengths(np.maximum(n_codes - 1, 0) // of_values)


def value_cells(n_codes: Ints, shift: Ints) -> Ints:
    """Cells of values, without that of missing ones: its number."""
    return ((n_codes - 1) >> shift) + 1


def first_code(cell: Ints, shift: Ints) -> Ints:
    """Smallest code of cells; -1 stays -1."""
    return np.where(cell < 0, -1, cell << shift)


def last_code(cell: Ints, n_codes: Ints, shift: Ints) -> Ints:
    """Largest code of cells of values."""
    return np.asarray(np.minimum(((cell + 1) << shift) - 1, n_codes - 1))


def cells_of_codes(n_codes: int, shift: int) -> Ints:
    """The cell of every code of a column, that of missing values last."""
    cells = np.arange(n_codes + 1) >> shift
    cells[-1] = ((n_codes - 1) >> shift) + 1
    return cells

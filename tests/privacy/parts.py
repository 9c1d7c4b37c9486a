"""What a client adds up before it answers a query."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def sum_parts(
    bits: NDArray[np.uint8], part: NDArray[np.integer[Any]], n_parts: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sums of the permanent bits of the rows of each part, and how many rows it has."""
    ones = np.zeros((n_parts, bits.shape[1]), np.int64)
    np.add.at(ones, part, bits)
    return ones, np.bincount(part, minlength=n_parts)

"""Values to rank codes: how many of a forest's thresholds lie below each. Prediction needs no more of a value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels._jit import kernel

MISSING = 0xFFFF
"""The code of a missing number."""


@kernel
def rank_values(values: NDArray[np.float32], thresholds: NDArray[np.float32], codes: NDArray[np.uint16]) -> None:
    """Write the number of thresholds below each value, ``MISSING`` for NaN.

    ``thresholds`` are ascending, distinct, and at least one; fewer than ``MISSING``. The binary search takes the same
    steps for every value: the inner loop has no branch and runs on vectors. Invariant: the answer is between
    ``position`` and ``position + length``.
    """
    n = len(values)
    position = np.zeros(n, np.int32)
    length = len(thresholds)
    while length > 1:
        half = length // 2
        for i in range(n):
            middle = position[i] + np.int32(half)
            position[i] = middle if thresholds[middle - 1] < values[i] else position[i]
        length -= half
    for i in range(n):
        rank = position[i] + np.int32(thresholds[position[i]] < values[i])
        codes[i] = np.uint16(MISSING if np.isnan(values[i]) else rank)


@kernel
def rank_slots(
    values: NDArray[np.float32],
    thresholds: NDArray[np.float32],
    starts: NDArray[np.int64],
    first: int,
    codes: NDArray[Any],
) -> None:
    """Rank the columns ``values[k]`` and spread their codes over ``codes[block, first + k, row in block]``.

    The thresholds of column k are ``thresholds[starts[k] : starts[k + 1]]``, as `rank_values` takes them.
    """
    n_rows = values.shape[1]
    ranks = np.empty(n_rows, np.uint16)
    for k in range(values.shape[0]):
        rank_values(values[k], thresholds[starts[k] : starts[k + 1]], ranks)
        for i in range(n_rows):
            codes[i >> 6, first + k, i & 63] = ranks[i]

"""Sums of products of numbers modulo 2**128, of which either factor may be a mask.

A number is two 64-bit words, the low one first. Vectors of rows stand one after the other, so that a sum reads both of
its vectors from beginning to end::

    left     uint64 (c, n, 2)   c vectors of n numbers
    right    uint64 (k, n, 2)   k vectors of n numbers
    out      uint64 (c, k, 2)   the sum over rows of every vector on the left times every vector on the right
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel

U64: Any = np.uint64
HALF: Any = U64(32)
LOW: Any = U64(0xFFFFFFFF)


@kernel
def _high(a: Any, b: Any) -> Any:
    """The upper word of the product of two words: four products of their halves."""
    a0, a1, b0, b1 = a & LOW, a >> HALF, b & LOW, b >> HALF
    middle = a1 * b0 + ((a0 * b0) >> HALF)  # cannot overflow: (2**32 - 1)**2 + 2**32 - 1 < 2**64
    other = a0 * b1 + (middle & LOW)
    return a1 * b1 + (middle >> HALF) + (other >> HALF)


@kernel
def sum_products(left: Any, right: Any, out: Any) -> None:
    """Sum the products over all rows, modulo 2**128."""
    for j in range(left.shape[0]):
        for k in range(right.shape[0]):
            low, high = U64(0), U64(0)
            for i in range(left.shape[1]):
                a, b = left[j, i, 0], right[k, i, 0]
                before = low
                low += a * b
                high += _high(a, b) + a * right[k, i, 1] + left[j, i, 1] * b
                if low < before:
                    high += U64(1)
            out[j, k, 0] = low
            out[j, k, 1] = high

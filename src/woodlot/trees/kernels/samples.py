"""The rows of single nodes at which growing begins: in order, as sample vectors, and their sides.

A sample vector has one bit per row of the table, eight to a byte, first row lowest. The vectors of several nodes follow
one another, ``width`` bytes each. When a participant leaves, many nodes begin at once, and most are small: a loop over
them in Python costs more than the search of their splits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel

U8: Any = np.uint8
SPARSE = 16
"""A node with fewer than one in so many of the table's rows is sorted by comparison, others by a counter per row."""


@kernel
def sort_rows(rows: Any, weights: Any, start: Any, end: Any, n_rows: Any) -> None:
    """Sort the rows of some nodes, in place, with their weights; no row occurs twice in a node, and no weight is 0.

    ``drawn`` holds the weight of each table row of the node, and 0 for all others; it is all 0 again after each node.
    """
    drawn = np.zeros(n_rows, np.uint32)
    for node in range(len(start)):
        s, e = start[node], end[node]
        if (e - s) * SPARSE < n_rows:
            order = np.argsort(rows[s:e])
            own_rows, own_weights = rows[s:e].copy(), weights[s:e].copy()
            for i in range(e - s):
                rows[s + i] = own_rows[order[i]]
                weights[s + i] = own_weights[order[i]]
        else:
            for i in range(s, e):
                drawn[rows[i]] = weights[i]
            o = s
            for row in range(n_rows):
                if drawn[row] > 0:
                    rows[o] = row
                    weights[o] = drawn[row]
                    drawn[row] = 0
                    o += 1


@kernel
def left_rows(bins: Any, first: Any, size: Any, cut: Any, at: Any, flags: Any) -> None:
    """Which rows of some nodes go left, by their bins: 1 where the bin is at most the node's cut.

    A bin is that of `spaced`. The bins of node k begin at ``first[k]``, its flags at ``at[k]``; it has ``size[k]``
    rows.
    """
    for k in range(len(first)):
        for i in range(size[k]):
            flags[at[k] + i] = bins[first[k] + i] <= cut[k]


@kernel
def write_bits(rows: Any, start: Any, end: Any, width: Any, vectors: Any) -> None:
    """The rows of some nodes as bits, ``width`` bytes for each; ``vectors`` comes as zeros."""
    for k in range(len(start)):
        for i in range(start[k], end[k]):
            vectors[k * width + (rows[i] >> 3)] |= U8(1) << U8(rows[i] & 7)


@kernel
def read_bits(vectors: Any, rows: Any, width: Any) -> None:
    """The rows of some nodes from their bits, node after node; ``rows`` has room for as many as there are bits."""
    o = 0
    for byte in range(len(vectors)):
        bits = vectors[byte]
        row = (byte % width) * 8
        while bits:
            if bits & U8(1):
                rows[o] = row
                o += 1
            bits >>= U8(1)
            row += 1

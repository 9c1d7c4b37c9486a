"""Sealed prediction: numbers per row and leaf, row after row.

Every party sends a number for each row and leaf: 0, if the row can reach the leaf as far as the party knows, else
random; masks that cancel in the sum over all parties are added. In the sum the leaf of a row is 0 and all others are
random.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels._jit import kernel


@kernel
def clear_possible(words: NDArray[np.uint64], numbers: NDArray[np.uint64]) -> None:
    """Set ``numbers[row, leaf]`` to 0 where bit ``row % 64`` of ``words[row // 64, leaf]`` says that it is possible."""
    n_rows, n_leaves = numbers.shape
    for row in range(n_rows):
        block, bit = row // 64, np.uint64(row % 64)
        for leaf in range(n_leaves):
            # all ones where the leaf is excluded: no branch on the data
            numbers[row, leaf] &= ((words[block, leaf] >> bit) & np.uint64(1)) - np.uint64(1)


@kernel
def find_zeros(total: NDArray[np.uint64], first_leaf: int, tree_of: NDArray[np.int32], leaf: NDArray[np.int32]) -> bool:
    """Write into ``leaf[row, tree]`` the leaves whose number is 0; False if a tree would have two for one row.

    ``tree_of`` has the tree of every leaf; column c of ``total`` is leaf ``first_leaf + c``.
    """
    n_rows, n_leaves = total.shape
    for row in range(n_rows):
        for column in range(n_leaves):
            if total[row, column] == np.uint64(0):
                number = first_leaf + column
                if leaf[row, tree_of[number]] >= 0:
                    return False
                leaf[row, tree_of[number]] = number
    return True

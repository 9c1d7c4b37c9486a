"""The keys of nodes, from which random choices at each follow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.forest import Structure
from woodlot.trees.kernels.hashing import child_keys


def node_keys(structure: Structure, root_keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Key of every node, from which the order of its candidates follows."""
    keys = np.empty(structure.n_nodes, np.uint64)
    level = structure.offset[:-1]
    keys[level] = root_keys
    while len(level):
        inner = level[structure.right[level] >= 0]
        below = np.empty(2 * len(inner), np.uint64)
        child_keys(keys[inner], below)
        level = np.column_stack([inner + 1, structure.right[inner]]).ravel()
        keys[level] = below
    return keys

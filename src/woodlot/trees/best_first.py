"""``max_leaf_nodes``: what best-first growth would have split, found while trees grow level by level.

Best-first growth always splits the open node whose split gains most, until a tree has enough leaves. Which node
comes before which depends on gains and ancestors only. So among the nodes known so far, the first ``limit - 1`` in
best-first order contain all that full knowledge would choose among them: only these are split on the way down, and the
rest is pruned at the end. The trees equal those of best-first growth.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray


def best_first(
    n_trees: int, left: NDArray[np.int64], gain: NDArray[np.float64], max_leaf_nodes: int
) -> NDArray[np.bool_]:
    """Which nodes best-first growth splits, as far as known.

    Parameters
    ----------
    n_trees : int
        Nodes 0 to n_trees - 1 are the roots.
    left : int64 array
        Left child of each node, -1 where it has none (yet); the right child is the next node.
    gain : float64 array
        Gain of each node's best split, NaN where it cannot be split.

    """
    chosen = np.zeros(len(left), bool)
    for tree in range(n_trees):
        heap: list[tuple[float, int]] = []
        _push(heap, gain, tree)
        for _ in range(max_leaf_nodes - 1):
            if not heap:
                break
            _, node = heapq.heappop(heap)
            chosen[node] = True
            if left[node] >= 0:
                _push(heap, gain, int(left[node]))
                _push(heap, gain, int(left[node]) + 1)
    return chosen


def _push(heap: list[tuple[float, int]], gain: NDArray[np.float64], node: int) -> None:
    if not np.isnan(gain[node]):
        heapq.heappush(heap, (-float(gain[node]), node))  # equal gains: the node made first

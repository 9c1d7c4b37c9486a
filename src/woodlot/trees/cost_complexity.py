"""``ccp_alpha``: minimal cost-complexity pruning, from the gains of the splits alone.

A branch is worth what its splits gain, less ``ccp_alpha`` for each of them; one that is worth nothing becomes a leaf.
From the deepest splits up, the worth of a branch is that of its root's split and of what is left of the two branches
below. What stands is the smallest of the subtrees of least cost, which is unique (Breiman et al., 1984). scikit-learn
finds the same one by taking the weakest link away again and again, until the weakest is above ``ccp_alpha``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.best_first import best_first
from woodlot.trees.skeleton import Skeleton


def worthwhile(n_trees: int, left: NDArray[np.int64], gain: NDArray[np.float64], ccp_alpha: float) -> NDArray[np.bool_]:
    """Which nodes stay split, as far as the nodes above them do.

    Parameters
    ----------
    n_trees : int
        Nodes 0 to n_trees - 1 are the roots.
    left : int64 array
        Left child of each node, -1 where it has none; the right child is the next node.
    gain : float64 array
        Gain of each node's split, weighted by the node's share of the tree; NaN where it is not split.
    ccp_alpha : float
        What a split costs.
    """
    worth = np.zeros(len(left))
    levels = [np.arange(n_trees)]
    while len(nodes := levels[-1][~np.isnan(gain[levels[-1]])]):
        levels[-1] = nodes
        levels.append(np.column_stack([left[nodes], left[nodes] + 1]).ravel())
    for nodes in reversed(levels[:-1]):
        below = worth[left[nodes]] + worth[left[nodes] + 1]
        worth[nodes] = np.maximum(gain[nodes] - ccp_alpha + below, 0.0)
    return worth > 0


def splits_to_prune(
    skeleton: Skeleton, gain: NDArray[np.float64], max_leaf_nodes: int | None, ccp_alpha: float
) -> NDArray[np.int64]:
    """The split nodes that become leaves when trees are finished: first by ``max_leaf_nodes``, then by ``ccp_alpha``.

    Parameters
    ----------
    skeleton : Skeleton
        The trees.
    gain : float64 array
        Gain of every node, NaN where it is not split.
    max_leaf_nodes, ccp_alpha
        As in scikit-learn; None and 0 prune nothing.
    """
    split_nodes, left = skeleton.split_nodes, skeleton.left
    stays = np.ones(skeleton.n_nodes, bool)
    if max_leaf_nodes is not None:
        stays = best_first(skeleton.n_trees, left, gain, max_leaf_nodes)
    if ccp_alpha > 0:
        stays &= worthwhile(skeleton.n_trees, left, np.where(stays, gain, np.nan), ccp_alpha)
    return split_nodes[~stays[split_nodes]]

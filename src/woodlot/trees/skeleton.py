"""The shape of the trees while they grow, level by level: every role keeps one and all of them agree.

Nodes are numbered in the order they are made: the roots first, then two children for each split, in the order of the
frontier. So a split is told by one bit per open node, and node numbers never travel.
"""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.forest import Structure
from woodlot.trees.kernels.hashing import child_keys
from woodlot.trees.kernels.rows import preorder


class Skeleton:
    """Growing trees.

    Attributes
    ----------
    frontier : int64 array
        Numbers of the open nodes.
    key : uint64 array
        Key of each open node, from which the order of its candidate features follows.
    root_key : uint64 array
        Key of the root above each open node.
    depth : int
        Depth of the open nodes.
    """

    def __init__(self, root_keys: NDArray[np.uint64]) -> None:
        self.n_trees = len(root_keys)
        self.n_nodes = self.n_trees
        self.depth = 0
        self.frontier: NDArray[np.int64] = np.arange(self.n_trees, dtype=np.int64)
        self.key = root_keys
        self.root_key = root_keys
        self._splits: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

    def copy(self) -> Skeleton:
        """The same trees, to grow on by themselves."""
        other = copy(self)
        other._splits = list(self._splits)
        return other

    def split(self, is_split: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Split the marked open nodes; the frontier becomes all their children, whose numbers are returned."""
        chosen = np.flatnonzero(is_split)
        parents = self.frontier[chosen]
        children = self.n_nodes + np.arange(2 * len(parents), dtype=np.int64)
        self._splits.append((parents, children[::2]))
        self.n_nodes += len(children)
        keys = np.empty(len(children), np.uint64)
        child_keys(self.key[chosen], keys)
        self.key = keys
        self.root_key = np.repeat(self.root_key[chosen], 2)
        self.frontier = children
        self.depth += 1
        return children

    def keep_open(self, is_open: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Drop the closed nodes from the frontier; returns which of its places were kept."""
        kept = np.flatnonzero(is_open)
        self.frontier, self.key, self.root_key = self.frontier[kept], self.key[kept], self.root_key[kept]
        return kept

    @property
    def left(self) -> NDArray[np.int64]:
        """Left child of every node made so far, -1 without children; the right child is the next number."""
        left = np.full(self.n_nodes, -1, np.int64)
        for parents, children in self._splits:
            left[parents] = children
        return left

    @property
    def split_nodes(self) -> NDArray[np.int64]:
        """Numbers of the nodes that have been split, in the order they were."""
        return np.concatenate([np.empty(0, np.int64), *(parents for parents, _ in self._splits)])

    def surviving_ancestor(self, position: NDArray[np.int64]) -> NDArray[np.int64]:
        """For every node the node that stands for it after pruning: itself, or the leaf that swallowed it."""
        parent = np.arange(self.n_nodes, dtype=np.int64)
        for parents, children in self._splits:
            parent[children] = parents
            parent[children + 1] = parents
        heir = np.arange(self.n_nodes, dtype=np.int64)
        while (gone := position[heir] < 0).any():
            heir[gone] = parent[heir[gone]]
        return heir

    def leaves_if(self, is_split: NDArray[np.bool_], pruned: NDArray[np.int64]) -> NDArray[np.int64]:
        """Leaves of each tree if these open nodes were split and then these splits pruned; nothing changes."""
        trial = self.copy()
        trial.split(is_split)
        return (np.diff(trial.finish(pruned)[0].offset) + 1) // 2

    def finish(self, pruned: NDArray[np.int64] | None = None) -> tuple[Structure, NDArray[np.int64]]:
        """The finished structure, and where each node stands in it (-1: pruned away).

        Parameters
        ----------
        pruned : int64 array, optional
            Split nodes that become leaves after all.
        """
        left = self.left
        if pruned is not None:
            left[pruned] = -1
        position = np.full(self.n_nodes, -1, np.int64)
        offset = np.zeros(self.n_trees + 1, np.int64)
        right = np.full(self.n_nodes, -1, np.int32)
        preorder(left, self.n_trees, position, offset, right)
        return Structure(offset=offset, right=right[: int(offset[-1])].copy()), position

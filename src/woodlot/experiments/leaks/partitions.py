"""What all partitions of a forest together tell: the leaves and sides of rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from woodlot.estimators.complete import CompleteForest
from woodlot.estimators.forest import FederatedForestClassifier
from woodlot.experiments.leaks.case import Case
from woodlot.protocols.vertical.model import CoordinatorForest
from woodlot.trees.sampling import Bootstrap


def leaves_of_rows(case: Case, model: FederatedForestClassifier) -> NDArray[np.int64]:
    """Place in preorder of the leaf of every row in every tree, as all partitions together tell it."""
    forest = model.forest_
    complete = CompleteForest(forest.coordinator, forest.parts)
    table = pa.table({name: values for columns in case.columns.values() for name, values in columns.items()})
    leaf = complete.apply(table, 1)
    return np.asarray(np.flatnonzero(forest.coordinator.structure.right < 0)[leaf], np.int64)


def drawn_rows(model: FederatedForestClassifier, n_rows: int) -> NDArray[np.bool_]:
    """Which rows each tree has drawn: those that its partitions tell of."""
    sampling: Bootstrap | None = model.forest_.coordinator.sampling
    trees = range(model.forest_.coordinator.structure.n_trees)
    if sampling is None or sampling.seed is None:
        return np.ones((n_rows, len(trees)), bool)
    return np.column_stack([sampling.counts(tree, n_rows) > 0 for tree in trees])


def sides_at(
    forest: CoordinatorForest, party: str, leaf: NDArray[np.int64], limit: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """For every row and some nodes of a party: -1 left, 1 right, 0 not there; and the nodes' features."""
    right, offset = forest.structure.right, forest.structure.offset
    nodes = np.flatnonzero(forest.owner == forest.parties.index(party))[:limit]
    at = leaf[:, np.searchsorted(offset, nodes, side="right") - 1]
    inside = (at >= nodes) & (at < _ends_of_subtrees(right)[nodes])
    return np.where(inside, np.where(at >= right[nodes], 1.0, -1.0), 0.0), forest.feature[nodes]


def _ends_of_subtrees(right: NDArray[np.int32]) -> NDArray[np.int64]:
    """The first node in preorder after each node's subtree."""
    until = np.arange(1, len(right) + 1, dtype=np.int64)
    for node in range(len(right) - 1, -1, -1):
        if right[node] >= 0:
            until[node] = until[right[node]]
    return until

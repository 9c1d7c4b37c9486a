"""Labels from a party's own part of a hidden forest: where its columns were cut, and the shape of the trees.

Trees cut a column where the label changes. So the cuts say which of a party's own columns go with the label, and where;
columns that go with the label go with each other, and the main direction of all cut columns is close to the label
(up to its sign). No count is needed: this is told to every party by its part of the model, in every mode.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woodlot.leaks.hidden_view import NO_NODE, OpenedTrees
from woodlot.leaks.role_views import LeafRows, SplitRows, View
from woodlot.protocols.hidden.hidden_messages import KeepSplits

DIRECTIONS = 2
"""Main directions that an attacker looks at."""
ROWS_FOR_DIRECTIONS = 8000
"""Rows from which main directions are made, at most."""
DRAWN_SHARE = 0.632
"""Share of rows that a tree draws."""


def cut_columns(told: KeepSplits, own: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number per row and cut: on which side it is, less the mean, times the root of the nodes below such cuts.

    Parameters
    ----------
    told : KeepSplits
        A party's part of the forest.
    own : int64 array of shape (columns, rows)
        Bins of its columns.

    """
    below = _nodes_below(told.right.astype(np.int64))
    feature, low, node = (values.astype(np.int64) for values in (told.feature, told.low, told.node))
    by_number = told.set_length == 0
    feature, low, node = feature[by_number], low[by_number], node[by_number]
    if len(node) == 0:
        return np.zeros((own.shape[1], 1))
    room = int(own.max()) + 2
    cuts, which = np.unique(feature * room + low, return_inverse=True)
    weight = np.bincount(which, below[node])
    sides = (own[cuts // room] <= (cuts % room)[:, None]).T.astype(np.float64)
    return np.asarray((sides - sides.mean(axis=0)) * np.sqrt(weight / weight.sum()), np.float64)


def _nodes_below(right: NDArray[np.int64]) -> NDArray[np.float64]:
    """How many nodes each subtree has; the left child of a node is the next one."""
    size = np.ones(len(right))
    for node in range(len(right) - 1, -1, -1):
        if right[node]:
            size[node] += size[node + 1] + size[right[node]]
    return size


def main_directions(columns: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The main directions of some columns: one number per row each, up to its sign."""
    some = columns[np.random.default_rng(0).permutation(len(columns))[:ROWS_FOR_DIRECTIONS]]
    found = np.linalg.svd(some, full_matrices=False)[2][:DIRECTIONS]
    return [columns @ direction for direction in found]


def by_frequency(order: NDArray[np.float64], numbers: NDArray[np.int64]) -> float:
    """Labels right if the rows are divided so that the two groups are as frequent as the two classes; best naming."""
    share = float(np.mean(numbers == 1))
    rank = np.argsort(np.argsort(order, kind="stable"), kind="stable")
    upper, lower = rank >= (1 - share) * len(rank), rank < share * len(rank)
    return max(float(((numbers == 1) == upper).mean()), float(((numbers == 1) == lower).mean()))


def labels_of_clusters(own: NDArray[np.int64], numbers: NDArray[np.int64]) -> float:
    """Labels that the main directions of own columns read without any message: of their bins, and of all their cuts.

    What an attack reads from cuts that a forest has chosen counts as leaked only where it is more than this.
    """
    bins = own.T - own.T.mean(axis=0)
    deviation = bins.std(axis=0)
    sides = [(column <= cut).astype(np.float64) for column in own for cut in np.unique(column)[:-1]]
    tried = [bins / np.where(deviation > 0, deviation, 1.0)]
    if sides:
        cuts = np.stack(sides, axis=1)
        tried.append(cuts - cuts.mean(axis=0))
    return max(by_frequency(order, numbers) for columns in tried for order in main_directions(columns))


def from_known_labels(
    columns: NDArray[np.float64], known: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Labels of all rows by a linear model of the cut columns, from those of a few rows."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(numbers[known])) == 1:
        return np.full(len(columns), numbers[known[0]])
    model = LogisticRegression(C=10.0, max_iter=500).fit(columns[known], numbers[known])
    return np.asarray(model.predict(columns), np.int64)


def nodes_of_own_cuts(trees: OpenedTrees, party: str, own: NDArray[np.int64], smallest: int) -> View:
    """Nodes of which the second server knows the rows: above them there are only cuts of its own.

    Leaves are the closed ones. One that is large enough to be split, and was not, is pure.

    Parameters
    ----------
    smallest : int
        Drawn rows from which a node is split if its labels differ.

    """
    mine = set(trees.of_party(party).tolist())
    first = int(trees.of_party(party)[0])
    has_counts = np.zeros(len(trees.tree), bool)
    has_counts[trees.pair_node] = True
    known = {int(root): np.arange(trees.n_rows) for root in trees.roots}
    leaves, pure, splits, sides = [], [], [], []
    # so many rows that fewer than `smallest` drawn ones would be four standard deviations away
    large = smallest / DRAWN_SHARE + 4 * np.sqrt(smallest) / DRAWN_SHARE
    for node in range(len(trees.tree)):
        rows = known.get(node)
        if rows is None:
            continue
        if not has_counts[node]:
            leaves.append(rows)
            pure.append(len(rows) >= large)
        elif trees.left[node] != NO_NODE and int(trees.column[node]) in mine:
            left = trees.goes_left[node, own[trees.column[node] - first, rows]] > 0.5
            splits.append(rows)
            sides.append(left)
            known[int(trees.left[node])], known[int(trees.right[node])] = rows[left], rows[~left]
    return View(
        trees.n_rows,
        SplitRows(
            (party,),
            np.zeros(len(splits), np.int64),
            np.zeros(len(splits), np.int64),
            _starts(splits),
            _joined(splits),
            np.concatenate([np.empty(0, bool), *sides]).astype(bool),
        ),
        LeafRows(_starts(leaves), _joined(leaves), np.ones(sum(map(len, leaves)), np.int64), np.array(pure, bool)),
        None,
    )


def _starts(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.append(0, np.cumsum([len(part) for part in parts])).astype(np.int64)


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.uint32]:
    return np.concatenate([np.empty(0, np.uint32), *parts]).astype(np.uint32)

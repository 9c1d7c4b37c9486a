"""A complete forest as scikit-learn's own: fitted trees built from their arrays, through public constructors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from woodlot.exceptions import DataError

if TYPE_CHECKING:
    from woodlot.estimators.complete import CompleteForest

UNDEFINED = -2
"""scikit-learn's mark for the feature and threshold of a leaf."""


def to_sklearn(forest: CompleteForest) -> RandomForestClassifier | RandomForestRegressor:
    """Build a fitted scikit-learn forest with the same trees."""
    if forest.categorical_features:
        raise DataError(
            f"scikit-learn's trees cannot split categories as sets: {list(forest.categorical_features)}; "
            "train on numeric columns to export"
        )
    part = forest.coordinator
    n_features = len(forest.feature_names)
    # a fitted forest of the right shape, whose trees are then replaced
    X = np.zeros((max(len(part.classes), 1), n_features), np.float32)
    classes = np.array(part.classes) if part.classes else np.zeros(1)
    template = (RandomForestClassifier if part.classes else RandomForestRegressor)(
        n_estimators=part.structure.n_trees, bootstrap=False, max_depth=1
    )
    template.fit(X, classes)
    template.estimators_ = [_tree(forest, t, template.estimators_[t]) for t in range(part.structure.n_trees)]
    names = np.array(forest.feature_names, dtype=object)
    if not all(name == str(i) for i, name in enumerate(forest.feature_names)):
        template.feature_names_in_ = names
    return template


def _tree(
    forest: CompleteForest, number: int, template: DecisionTreeClassifier | DecisionTreeRegressor
) -> DecisionTreeClassifier | DecisionTreeRegressor:
    part = forest.coordinator
    first, stop = (int(part.structure.offset[number + k]) for k in (0, 1))
    n_nodes, n_outputs = stop - first, part.leaves.n_outputs
    right = part.structure.right[first:stop].astype(np.int64)
    inner = np.flatnonzero(right >= 0)
    at = np.searchsorted(forest.splits.node, first + inner)
    tree_class = type(template.tree_)
    tree = tree_class(template.n_features_in_, np.array([n_outputs if part.classes else 1]), 1)
    state = template.tree_.__getstate__()
    nodes = np.zeros(n_nodes, dtype=state["nodes"].dtype)
    nodes["left_child"], nodes["right_child"] = -1, -1
    nodes["feature"], nodes["threshold"] = UNDEFINED, UNDEFINED
    nodes["left_child"][inner] = inner + 1
    nodes["right_child"][inner] = right[inner] - first
    nodes["feature"][inner] = forest.splits.feature[at]
    nodes["threshold"][inner] = forest.splits.threshold[at]
    nodes["missing_go_to_left"][inner] = forest.splits.missing_left[at]
    totals = _subtree_totals(part, first, stop)
    weight = totals.sum(axis=1) if part.classes else totals[:, 1]
    nodes["weighted_n_node_samples"] = weight
    nodes["n_node_samples"] = np.rint(weight)
    value = totals / weight[:, None] if part.classes else totals[:, :1] / weight[:, None]
    if part.classes:
        nodes["impurity"] = 1.0 - (value**2).sum(axis=1)
    leaf = np.flatnonzero(right < 0)
    _exact_leaves(part, first + leaf, value, leaf)
    state.update(nodes=nodes, values=value[:, None, :], node_count=n_nodes, max_depth=_depth(right, first))
    tree.__setstate__(state)
    template.tree_ = tree
    return template


def _subtree_totals(part: Any, first: int, stop: int) -> Any:
    """Class weights, or (weighted sum of targets, weight), of every node of a tree."""
    leaves, width = part.leaves, part.leaves.n_outputs if part.classes else 2
    totals = np.zeros((stop - first, width))
    for i in range(stop - first - 1, -1, -1):
        child = int(part.structure.right[first + i])
        if child >= 0:
            totals[i] = totals[i + 1] + totals[child - first]
            continue
        leaf = int(part.structure.leaf[first + i])
        entries = slice(leaves.start[leaf], leaves.start[leaf + 1])
        if part.classes:
            totals[i, leaves.output[entries]] = leaves.value[entries] * leaves.weight[leaf]
        else:
            totals[i] = leaves.value[leaves.start[leaf]] * leaves.weight[leaf], leaves.weight[leaf]
    return totals


def _exact_leaves(part: Any, nodes: Any, value: Any, rows: Any) -> None:
    """The leaves' own values, without the detour over totals and its rounding."""
    for leaf, row in zip(part.structure.leaf[nodes], rows, strict=True):
        entries = slice(part.leaves.start[leaf], part.leaves.start[leaf + 1])
        value[row] = 0.0
        value[row, part.leaves.output[entries]] = part.leaves.value[entries]


def _depth(right: Any, first: int) -> int:
    depth = np.zeros(len(right), np.int64)
    for i in np.flatnonzero(right >= 0):
        depth[i + 1] = depth[right[i] - first] = depth[i] + 1
    return int(depth.max(initial=0))

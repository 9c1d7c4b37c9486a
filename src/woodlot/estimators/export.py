"""A complete forest as scikit-learn's own: fitted trees whose arrays are set to those of the forest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.trees.forest import subtree_ends

if TYPE_CHECKING:
    from woodlot.estimators.complete import CompleteForest

UNDEFINED = -2
"""scikit-learn's mark for the feature and threshold of a leaf."""


def to_sklearn(forest: CompleteForest) -> RandomForestClassifier | RandomForestRegressor:
    """Build a fitted scikit-learn forest with the same trees, answers and importances.

    The impurity of a regression's nodes is counted from its leaves: how targets spread within a leaf is known to
    the label holder only.
    """
    if forest.categorical_features:
        raise DataError(
            f"scikit-learn's trees cannot split categories as sets: {list(forest.categorical_features)}; "
            "train on numeric columns to export"
        )
    part = forest.coordinator
    if part.leaves.link != "mean":
        raise DataError(
            "scikit-learn's forests average the shares of classes, and this one's trees add scores: export it with "
            "to_onnx or to_treelite"
        )
    template = _template(forest)
    ends = subtree_ends(part.structure.right)
    nodes = _nodes(forest, ends, template.estimators_[0].tree_.__getstate__()["nodes"].dtype)
    offset = part.structure.offset
    for number, tree in enumerate(template.estimators_):
        first, stop = int(offset[number]), int(offset[number + 1])
        _fill(tree, nodes[first:stop].copy(), forest, first, stop, ends[first:stop] - first)
    if not all(name == str(i) for i, name in enumerate(forest.feature_names)):
        template.feature_names_in_ = np.array(forest.feature_names, dtype=object)
    return template


def _template(forest: CompleteForest) -> Any:
    """A fitted forest of the right kind and size, with trees of no use."""
    n_rows, n_trees = max(len(forest.classes), 1), forest.coordinator.structure.n_trees
    X = np.zeros((n_rows, len(forest.feature_names)), np.float32)
    settings = {"n_estimators": n_trees, "criterion": forest.criterion, "bootstrap": False, "max_depth": 1}
    if len(forest.classes):
        return RandomForestClassifier(**settings).fit(X, forest.classes)
    return RandomForestRegressor(**settings).fit(X, np.zeros(1))


def _nodes(forest: CompleteForest, ends: NDArray[np.int64], layout: np.dtype[Any]) -> NDArray[Any]:
    """Questions of all nodes in scikit-learn's layout, children numbered within their tree."""
    structure, splits = forest.coordinator.structure, forest.splits
    first = np.repeat(structure.offset[:-1], np.diff(structure.offset))
    inner = splits.node
    nodes = np.zeros(structure.n_nodes, layout)
    nodes["left_child"] = nodes["right_child"] = -1
    nodes["feature"], nodes["threshold"] = UNDEFINED, UNDEFINED
    nodes["left_child"][inner] = inner + 1 - first[inner]
    nodes["right_child"][inner] = structure.right[inner] - first[inner]
    nodes["feature"][inner] = splits.feature
    nodes["threshold"][inner] = splits.threshold
    nodes["missing_go_to_left"][inner] = splits.missing_left
    return nodes


def _fill(
    tree: Any, nodes: NDArray[Any], forest: CompleteForest, first: int, stop: int, ends: NDArray[np.int64]
) -> None:
    """Put the nodes and answers of one tree into a fitted tree of scikit-learn's."""
    part = forest.coordinator
    inner = part.structure.right[first:stop] >= 0
    answers, weight = _leaf_answers(part, first, stop)
    # what is below a node stands behind it without a gap: sums over subtrees are differences of running sums
    totals = _sums(answers * weight[:, None], ends)
    totals[~inner] = (answers * weight[:, None])[~inner]
    weights = _sums(weight[:, None], ends)[:, 0]
    values = totals / weights[:, None]
    values[~inner] = answers[~inner]
    gain = part.gain[first:stop] * weights[0]
    impurity = np.zeros(len(nodes))
    if len(forest.classes):
        impurity = weight * _impurity(answers, forest.criterion)
    nodes["impurity"] = np.maximum(_sums((impurity + gain)[:, None], ends)[:, 0] / weights, 0.0)
    nodes["weighted_n_node_samples"] = weights
    nodes["n_node_samples"] = np.rint(weights)
    if len(forest.classes) and forest.vote == "majority":
        values[~inner] = np.eye(len(forest.classes))[answers[~inner].argmax(axis=1)]
    state = tree.tree_.__getstate__()
    state.update(
        nodes=nodes,
        values=np.ascontiguousarray(values[:, None, :]),
        node_count=len(nodes),
        max_depth=_depth(inner, ends),
    )
    grown = type(tree.tree_)(tree.n_features_in_, np.array([values.shape[1]], np.intp), 1)
    grown.__setstate__(state)
    tree.tree_ = grown


def _leaf_answers(part: CoordinatorForest, first: int, stop: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Answers (n_nodes, n_outputs) and weights of the leaves of one tree, zero at inner nodes."""
    leaves, right = part.leaves, part.structure.right[first:stop]
    at = np.flatnonzero(right < 0)
    numbers = part.structure.leaf[first + at]
    lengths = np.diff(leaves.start)[numbers]
    entries = slice(leaves.start[numbers[0]], leaves.start[numbers[-1] + 1])
    answers = np.zeros((stop - first, leaves.n_outputs))
    answers[np.repeat(at, lengths), leaves.output[entries]] = leaves.value[entries]
    weight = np.zeros(stop - first)
    weight[at] = leaves.weight[numbers]
    return answers, weight


def _sums(values: NDArray[np.float64], ends: NDArray[np.int64]) -> NDArray[np.float64]:
    running = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=running[1:])
    return running[ends] - running[:-1]


def _impurity(shares: NDArray[np.float64], criterion: str) -> NDArray[np.float64]:
    if criterion == "gini":
        return np.asarray(1.0 - (shares**2).sum(axis=1))
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.asarray(-(shares * logs).sum(axis=1))


def _depth(inner: NDArray[np.bool_], ends: NDArray[np.int64]) -> int:
    """A node is as deep as there are inner nodes that begin before it and end behind it."""
    steps = np.zeros(len(ends) + 1, np.int64)
    np.add.at(steps, np.flatnonzero(inner) + 1, 1)
    np.add.at(steps, ends[inner], -1)
    return int(np.cumsum(steps).max(initial=0))

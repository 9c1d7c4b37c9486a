"""Whether the parts of a forest fit together: asked of every part that comes from a file or from a peer.

Prediction walks these arrays without looking where it treads, so nothing unsound may reach it. Each function raises
``ValueError`` with the reason; whose fault that is, the caller knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.trees.encoding import CategoryCoding, Coding
from woodlot.trees.forest import Leaves, Link, Splits, Structure, subtree_ends


def check_structure(structure: Structure) -> None:
    """Every tree is a binary tree in preorder."""
    offset, right = structure.offset, structure.right
    _require(offset.dtype == np.int64 and offset.ndim == 1 and len(offset) >= 2, "trees are not numbered")
    _require(right.dtype == np.int32 and right.ndim == 1, "children are not numbered")
    _require(offset[0] == 0 and offset[-1] == len(right) and (np.diff(offset) > 0).all(), "trees have no nodes")
    inner = np.flatnonzero(right >= 0)
    _require((right[right < 0] == -1).all(), "a leaf has a child")
    _require(((right[inner] > inner + 1) & (right[inner] < len(right))).all(), "a right child is out of place")
    end = subtree_ends(right)
    _require(np.array_equal(end[inner + 1], right[inner]), "left and right branches overlap")
    _require(np.array_equal(end[offset[:-1]], offset[1:]), "a branch leaves its tree")


def check_splits(splits: Splits, owned: NDArray[np.int64], codings: Sequence[Coding]) -> None:
    """One question for each of the party's own nodes, on its own columns, of the kind that the column is."""
    n = len(owned)
    for array, dtype, length in (
        (splits.node, np.int32, n),
        (splits.feature, np.int32, n),
        (splits.threshold, np.float64, n),
        (splits.missing_left, np.bool_, n),
        (splits.set_start, np.int64, n + 1),
        (splits.sets, np.uint8, len(splits.sets)),
    ):
        _require(array.dtype == dtype and array.shape == (length,), "questions have the wrong form")
    _require(np.array_equal(splits.node, owned), "questions do not stand at the party's nodes")
    _require(((splits.feature >= 0) & (splits.feature < len(codings))).all(), "a question is on no column")
    lengths = np.diff(splits.set_start)
    _require(
        splits.set_start[0] == 0 and splits.set_start[-1] == len(splits.sets) and (lengths >= 0).all(),
        "sets of categories overlap",
    )
    # one bit for each category and one for those that training has not seen
    longest = np.array([len(c.categories) // 8 + 1 if isinstance(c, CategoryCoding) else 0 for c in codings], np.int64)
    longest = longest[splits.feature] if n else longest[:0]
    _require((((longest > 0) == (lengths > 0)) & (lengths <= longest)).all(), "a question is of the wrong kind")
    # infinite where a split only tells missing values from others
    _require(not np.isnan(splits.threshold[longest == 0]).any(), "a threshold is not a number")


def check_leaves(leaves: Leaves, n_leaves: int) -> None:
    """An answer for each leaf."""
    n = len(leaves.value)
    for array, dtype, length in (
        (leaves.weight, np.float64, n_leaves),
        (leaves.start, np.int64, n_leaves + 1),
        (leaves.output, np.int32, n),
        (leaves.value, np.float64, n),
    ):
        _require(array.dtype == dtype and array.shape == (length,), "leaves have the wrong form")
    lengths = np.diff(leaves.start)
    _require(leaves.start[0] == 0 and leaves.start[-1] == n and (lengths > 0).all(), "a leaf has no answer")
    _require(((leaves.output >= 0) & (leaves.output < leaves.n_outputs)).all(), "a leaf answers for no class")
    _require(np.isfinite(leaves.value).all() and (leaves.weight > 0).all(), "a leaf's answer is not a number")


def check_coordinator(forest: CoordinatorForest) -> None:
    """Structure and leaves are sound, and every split is one party's and on one of its features."""
    check_structure(forest.structure)
    check_leaves(forest.leaves, forest.structure.n_leaves)
    n, n_features = forest.structure.n_nodes, len(forest.feature_keys)
    for array, dtype, length in (
        (forest.owner, np.int16, n),
        (forest.feature, np.int32, n),
        (forest.gain, np.float64, n),
        (forest.feature_keys, np.uint64, n_features),
        (forest.feature_party, np.int64, n_features),
    ):
        _require(array.dtype == dtype and array.shape == (length,), "splits have the wrong form")
    inner = forest.structure.right >= 0
    party, feature = forest.feature_party, forest.feature
    _require(
        ((party >= 0) & (party < len(forest.parties)) & (np.diff(party, prepend=0) >= 0)).all(), "a feature is nobody's"
    )
    _require((feature[~inner] == -1).all() and (forest.owner[~inner] == -1).all(), "a leaf is split")
    _require(((feature[inner] >= 0) & (feature[inner] < n_features)).all(), "a node is split by no feature")
    _require(np.array_equal(party[feature[inner]], forest.owner[inner]), "a node is split by another party's feature")
    _require(np.isfinite(forest.gain).all(), "a gain is not a number")
    _require(forest.leaves.n_outputs == max(1, len(forest.classes)), "leaves do not answer for the classes")
    _require(forest.leaves.link in get_args(Link), "the answers of trees are put together in an unknown way")


def _require(condition: bool | np.bool_, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)

"""From the decisions at all nodes of a tree to the answers of 64 rows.

`reach` decodes what the parties sent into one word per node: bit j says that row j of the block goes right there. The
word counts only where the node's owner knows the row. A row that all owners know goes down one path. Any other row
follows both branches at the nodes of owners that do not know it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels._bits import lowest_one
from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.walk import LeafAnswers, add_tree

GROUP = 16
"""Rows that go down a tree together: enough to hide the loads, few enough not to wait for the deepest."""


class TreesShape(NamedTuple):
    """What the coordinator knows of the trees; nodes in preorder, as in ``trees.forest.Structure``."""

    offset: NDArray[np.int64]
    """Nodes of tree t are ``offset[t] : offset[t + 1]``."""
    jump: NDArray[np.int32]
    """Distance from a node to its right child, 0 at a leaf."""
    leaf: NDArray[np.int32]
    """Number of each leaf, -1 at inner nodes."""
    owner: NDArray[np.int16]
    """Party that splits each inner node."""
    share_left: NDArray[np.float64]
    """Share of a node's training weight that went left."""
    share_right: NDArray[np.float64]
    max_nodes: int
    max_depth: int


@kernel
def settle(
    shape: TreesShape,
    answers: LeafAnswers,
    tree: int,
    goes_right: NDArray[np.uint64],
    known: NDArray[np.uint64],
    valid: NDArray[np.uint64],
    block: int,
    leaf: NDArray[np.int32],
    out: NDArray[np.float64],
    uncertain: NDArray[np.bool_] | None,
) -> None:
    """Add the tree's answers to ``out[row]`` and write ``leaf[tree, row]``.

    ``goes_right`` has a word per node of the tree; a bit counts where its row can be and the owner knows the
    row, as ``known[owner, block]`` says. At other nodes the row follows both branches, weighted by their
    shares: it is then uncertain, and its leaf -1. ``uncertain`` is None where every row is known everywhere.
    ``valid[block]`` has a one for each row of the table: the last block may be part padding.
    """
    jump, number = shape.jump, shape.leaf
    sure = valid[block]
    for party in range(known.shape[0]):
        sure &= known[party, block]
    root = shape.offset[tree]
    at = np.empty(GROUP, np.int64)
    for first in range(0, 64, GROUP):
        group = (sure >> np.uint64(first)) & np.uint64((1 << GROUP) - 1)
        if group == np.uint64(0):
            continue
        for j in range(GROUP):
            at[j] = root
        moving = True
        while moving:
            jumps = 0
            for j in range(GROUP):
                distance = jump[at[j]]
                jumps |= distance
                right = (goes_right[at[j] - root] >> np.uint64(first + j)) & np.uint64(1)
                at[j] += distance if right else min(distance, 1)
            moving = jumps != 0
        while group != np.uint64(0):
            j = lowest_one(group)
            row = block * 64 + first + j
            leaf[tree, row] = number[at[j]]
            group &= group - np.uint64(1)
    if uncertain is not None:
        unsure = valid[block] & ~sure
        while unsure != np.uint64(0):
            row = block * 64 + lowest_one(unsure)
            bit = unsure & (~unsure + np.uint64(1))
            leaf[tree, row] = follow_both(shape, answers, root, goes_right, known, block, bit, out, row)
            uncertain[row] |= leaf[tree, row] < 0
            unsure ^= bit
    add_tree(answers, leaf, tree, block * 64, min(block * 64 + 64, out.shape[0]), out)


@kernel
def follow_both(
    shape: TreesShape,
    answers: LeafAnswers,
    root: int,
    goes_right: NDArray[np.uint64],
    known: NDArray[np.uint64],
    block: int,
    bit: np.uint64,
    out: NDArray[np.float64],
    row: Any,
) -> Any:
    """Add the weighted answer of one row and return -1, or return its leaf if it met no unknown node.

    Depth first: the left branch is followed, the right one waits on a stack with its weight. ``bit`` selects the row in
    the words. With majority voting the tree gives one vote, to the largest of the weighted mean.
    """
    jump, owner, share_left, share_right = shape.jump, shape.owner, shape.share_left, shape.share_right
    start, output, value = answers.start, answers.output, answers.value
    waiting = np.empty(shape.max_depth + 1, np.int64)
    weights = np.empty(shape.max_depth + 1, np.float64)
    mean = np.zeros(out.shape[1], np.float64)
    waiting[0] = root
    weights[0] = 1.0
    depth = 1
    split = False
    while depth > 0:
        depth -= 1
        i = waiting[depth]
        weight = weights[depth]
        while jump[i] > 0:
            if known[owner[i], block] & bit:
                i += jump[i] if goes_right[i - root] & bit else 1
            else:
                split = True
                waiting[depth] = i + jump[i]
                weights[depth] = weight * share_right[i]
                depth += 1
                weight *= share_left[i]
                i += 1
        leaf = shape.leaf[i]
        if not split:
            return leaf
        for j in range(start[leaf], start[leaf + 1]):
            mean[output[j]] += weight * value[j]
    if answers.majority:
        best = 0
        for j in range(1, len(mean)):
            if mean[j] > mean[best]:
                best = j
        out[row, best] += 1.0
    else:
        for j in range(len(mean)):
            out[row, j] += mean[j]
    return -1


@kernel
def measure_trees(
    right: NDArray[np.int32],
    leaf: NDArray[np.int32],
    leaf_weight: NDArray[np.float64],
    share_left: NDArray[np.float64],
    share_right: NDArray[np.float64],
) -> int:
    """Write the shares of every inner node, halves where it has no weight, and return the greatest depth.

    In preorder children come after their parent, so one pass from the last node to the first sees children first.
    """
    weight = np.empty(len(right), np.float64)
    height = np.zeros(len(right), np.int64)
    highest = 0
    for i in range(len(right) - 1, -1, -1):
        if right[i] < 0:
            weight[i] = leaf_weight[leaf[i]]
            continue
        weight[i] = weight[i + 1] + weight[right[i]]
        height[i] = max(height[i + 1], height[right[i]]) + 1
        highest = max(highest, height[i])
        empty = weight[i] == 0.0
        share_left[i] = 0.5 if empty else weight[i + 1] / weight[i]
        share_right[i] = 0.5 if empty else weight[right[i]] / weight[i]
    return highest

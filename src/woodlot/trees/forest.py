"""What a grown forest is, in the parts that different roles hold.

All trees stand in one set of arrays, each tree in preorder, so that the left child of node ``i`` is ``i + 1``::

    tree 0                        tree 1
    node    0  1  2  3  4         5  6  7
    right   4  3 -1 -1 -1         7 -1 -1       (-1: a leaf; otherwise the absolute index of the right child)
    leaf   -1 -1  0  1  2        -1  3  4       (leaves numbered in preorder over the whole forest)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels.branches import branch_ends


@dataclass(frozen=True, eq=False)
class Structure:
    """The shape of every tree: known to the coordinator and to every party."""

    offset: NDArray[np.int64]
    """Nodes of tree t are ``offset[t] : offset[t + 1]``."""
    right: NDArray[np.int32]
    """Right child of each node, -1 at a leaf; the left child is the next node."""

    @property
    def n_trees(self) -> int:
        return len(self.offset) - 1

    @property
    def n_nodes(self) -> int:
        return len(self.right)

    @cached_property
    def leaf(self) -> NDArray[np.int32]:
        """Number of each leaf in preorder, -1 at inner nodes."""
        is_leaf = self.right < 0
        numbers = np.cumsum(is_leaf, dtype=np.int32) - np.int32(1)
        return np.where(is_leaf, numbers, np.int32(-1))

    @property
    def n_leaves(self) -> int:
        return int(np.count_nonzero(self.right < 0))


def depth_of(structure: Structure) -> int:
    """Levels of splits of the deepest tree."""
    level, depth = structure.offset[:-1], -1
    while len(level):
        inner = level[structure.right[level] >= 0]
        level, depth = np.concatenate([inner + 1, structure.right[inner]]), depth + 1
    return depth


def subtree_ends(right: NDArray[np.int32]) -> NDArray[np.int64]:
    """The node after the last one below each node, for right children that stand behind their parents."""
    end = np.empty(len(right), np.int64)
    branch_ends(np.require(right, np.int32, ["C", "W"]), end)  # one kind of array: one compilation
    return end


def join_structures(parts: Sequence[Structure]) -> Structure:
    """Trees of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    shifts = np.concatenate([[0], np.cumsum([part.n_nodes for part in parts])]).astype(np.int64)
    return Structure(
        offset=np.concatenate(
            [np.zeros(1, np.int64), *(part.offset[1:] + shift for part, shift in zip(parts, shifts, strict=False))]
        ),
        right=np.concatenate(
            [np.where(part.right >= 0, part.right + shift, -1) for part, shift in zip(parts, shifts, strict=False)]
        ).astype(np.int32),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Splits:
    """The questions asked at some nodes: those of one party, or of all for the complete model.

    A numeric question sends ``value <= threshold`` left and missing values where ``missing_left`` says. A question
    on categories has ``threshold`` NaN and a set: bit ``c`` (little-endian within each byte) sends category code
    ``c`` left. The code after the last category stands for missing and unseen values.
    """

    node: NDArray[np.int32]
    """Where the question stands, ascending."""
    feature: NDArray[np.int32]
    """Column of the holder's table."""
    threshold: NDArray[np.float64]
    missing_left: NDArray[np.bool_]
    set_start: NDArray[np.int64]
    """The set of question i is ``sets[set_start[i] : set_start[i + 1]]``, empty for numeric questions."""
    sets: NDArray[np.uint8]

    @property
    def categorical(self) -> NDArray[np.bool_]:
        return np.diff(self.set_start) > 0


def gather_sets(
    set_start: NDArray[np.int64], sets: NDArray[np.uint8], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The sets of some questions, in another order."""
    if len(sets) == 0:
        return np.zeros(len(order) + 1, np.int64), sets
    lengths = np.diff(set_start)[order]
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    byte = np.arange(int(start[-1])) - np.repeat(start[:-1] - set_start[:-1][order], lengths)
    return start, sets[byte]


def join_splits(parts: Sequence[Splits], shifts: Sequence[int]) -> Splits:
    """Questions of all parts, whose node numbers are shifted; sorted by node."""
    node = np.concatenate([part.node + np.int32(shift) for part, shift in zip(parts, shifts, strict=True)])
    order = np.argsort(node, kind="stable")
    lengths = np.concatenate([np.diff(part.set_start) for part in parts])
    all_sets = np.concatenate([part.sets for part in parts])
    start, sets = gather_sets(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), all_sets, order)
    return Splits(
        node=node[order].astype(np.int32),
        feature=np.concatenate([part.feature for part in parts])[order].astype(np.int32),
        threshold=np.concatenate([part.threshold for part in parts])[order],
        missing_left=np.concatenate([part.missing_left for part in parts])[order],
        set_start=start,
        sets=sets,
    )


def move_splits(splits: Splits, place: NDArray[np.int64]) -> Splits:
    """Questions at their new nodes, in the same order; without those whose nodes are gone, where ``place`` is -1."""
    stays = np.flatnonzero(place[splits.node] >= 0)
    set_start, sets = gather_sets(splits.set_start, splits.sets, stays)
    return Splits(
        node=place[splits.node[stays]].astype(np.int32),
        feature=splits.feature[stays],
        threshold=splits.threshold[stays],
        missing_left=splits.missing_left[stays],
        set_start=set_start,
        sets=sets,
    )


Link = Literal["mean", "softmax"]
"""What becomes of the mean of the trees' answers: it is the forest's answer, or the scores that shares are made of."""


@dataclass(frozen=True, eq=False)
class Leaves:
    """What the leaves answer, sparse: most leaves of a deep classification tree know one class only.

    Leaf l answers ``value[j]`` for output ``output[j]``, j in ``start[l] : start[l + 1]``, and 0 for all others.
    A regression forest has one output and one entry per leaf.
    """

    weight: NDArray[np.float64]
    """Training weight that ended in each leaf."""
    start: NDArray[np.int64]
    output: NDArray[np.int32]
    value: NDArray[np.float64]
    n_outputs: int
    link: Link = "mean"

    @cached_property
    def top(self) -> NDArray[np.int32]:
        """The output with the largest value in each leaf (the first of equals): its vote."""
        dense_order = np.lexsort(
            (self.output, -self.value, np.repeat(np.arange(len(self.weight)), np.diff(self.start)))
        )
        return self.output[dense_order[self.start[:-1]]].astype(np.int32)


def take_leaves(leaves: Leaves, index: NDArray[np.int64]) -> Leaves:
    """Some of the leaves, in this order."""
    lengths = np.diff(leaves.start)[index]
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    entry = np.arange(int(start[-1])) - np.repeat(start[:-1] - leaves.start[:-1][index], lengths)
    return Leaves(leaves.weight[index], start, leaves.output[entry], leaves.value[entry], leaves.n_outputs, leaves.link)


def join_leaves(parts: Sequence[Leaves]) -> Leaves:
    """Leaves of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([np.diff(part.start) for part in parts])
    return Leaves(
        weight=np.concatenate([part.weight for part in parts]),
        start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        output=np.concatenate([part.output for part in parts]),
        value=np.concatenate([part.value for part in parts]),
        n_outputs=parts[0].n_outputs,
        link=parts[0].link,
    )

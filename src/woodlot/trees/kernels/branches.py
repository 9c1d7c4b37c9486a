"""Branches of trees in preorder: where each ends, and how they are put into other trees.

In preorder a branch is a stretch of neighbouring nodes, ``node : end[node]``, so that a branch is copied as a whole.
The picture of a graft is in ``woodlot.trees.graft``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels._jit import kernel


@kernel
def branch_ends(right: NDArray[np.int32], end: NDArray[np.int64]) -> None:
    """Write the node after the last one below each node; right children stand behind their parents."""
    for node in range(len(right) - 1, -1, -1):
        end[node] = node + 1 if right[node] < 0 else end[right[node]]


@kernel
def place_branches(
    offset: NDArray[np.int64],
    end: NDArray[np.int64],
    sketch_offset: NDArray[np.int64],
    sketch_of: NDArray[np.int64],
    origin: NDArray[np.int64],
    settled: NDArray[np.bool_],
    of_sketch: NDArray[np.int64],
    of_former: NDArray[np.int64],
    new_offset: NDArray[np.int64],
) -> None:
    """Number the nodes of a grafted forest, see `woodlot.trees.graft`.

    Former trees are ``offset``, sketches ``sketch_offset``; ``sketch_of`` is the sketch of each tree, -1 where the
    whole tree stays. ``origin`` is the former node behind each node of a sketch, -1 where it is new. A ``settled`` node
    brings its whole former branch, any other node with an origin only itself.

    Written: the new number of each node of a sketch (``of_sketch``) and of the former forest (``of_former``, which
    comes filled with -1 and keeps -1 for nodes that are gone), and where the new trees begin.
    """
    place = 0
    for tree in range(len(sketch_of)):
        new_offset[tree] = place
        k = sketch_of[tree]
        if k < 0:
            for node in range(offset[tree], offset[tree + 1]):
                of_former[node] = place
                place += 1
            continue
        for node in range(sketch_offset[k], sketch_offset[k + 1]):
            of_sketch[node] = place
            before = origin[node]
            if before < 0:
                place += 1
                continue
            after = end[before] if settled[node] else before + 1
            for each in range(before, after):
                of_former[each] = place
                place += 1
    new_offset[len(sketch_of)] = place


@kernel
def link_branches(right: NDArray[np.int32], place: NDArray[np.int64], new_right: NDArray[np.int32]) -> None:
    """Write the right children of nodes that have a new place; those of the others, and of leaves, are left alone."""
    for node in range(len(right)):
        if right[node] >= 0 and place[node] >= 0:
            new_right[place[node]] = place[right[node]]


@kernel
def answer_numbers(
    values: NDArray[np.float32],
    rows: NDArray[np.uint32],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    first: NDArray[np.int64],
    threshold: NDArray[np.float64],
    missing_left: NDArray[np.uint8],
    flags: NDArray[np.uint8],
) -> None:
    """Write which rows of some nodes go left (1) at their splits on one column of numbers, from ``first`` on.

    Values and thresholds are compared as float64, as in training. ``value != value`` is a missing value (NaN).
    """
    for node in range(len(start)):
        at = first[node]
        for i in range(start[node], end[node]):
            value = values[rows[i]]
            flags[at] = missing_left[node] if value != value else np.float64(value) <= threshold[node]
            at += 1


@kernel
def answer_sets(
    codes: NDArray[np.int32],
    rows: NDArray[np.uint32],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    first: NDArray[np.int64],
    set_start: NDArray[np.int64],
    set_end: NDArray[np.int64],
    sets: NDArray[np.uint8],
    missing_left: NDArray[np.uint8],
    flags: NDArray[np.uint8],
) -> None:
    """Write which rows of some nodes go left (1) at their splits on one column of categories, from ``first`` on.

    What a set does not cover, and what is missing (a negative code), goes where missing values go.
    """
    for node in range(len(start)):
        at = first[node]
        for i in range(start[node], end[node]):
            code = np.int64(codes[rows[i]])
            byte = set_start[node] + (code >> 3)
            covered = code >= 0 and byte < set_end[node]
            flags[at] = (sets[byte] >> (code & 7)) & 1 if covered else missing_left[node]
            at += 1

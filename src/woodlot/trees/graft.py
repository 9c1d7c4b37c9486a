r"""Branches of a former forest put into trees that were grown again.

Where a forest is regrown in part, all roles grow a *sketch*: the trees that change, down to the branches that stay as
they were. Grafting puts these branches, and the trees that do not change at all, back in their places::

    former tree      A             sketch      A            grafted      A
                   /   \                      / \                       / \
                  B     C                    B   n1    (C is gone,      B   n1
                 / \   / \                                n1 is new)  / \
                d   e f   g                                           d   e
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.forest import Structure, join_structures, subtree_ends
from woodlot.trees.kernels.branches import link_branches, place_branches


@dataclass(frozen=True, eq=False)
class Sketch:
    """Trees that were grown again, as far as they had to be.

    Attributes
    ----------
    trees : int64 array
        Their numbers in the forest, ascending.
    structure : Structure
        One tree for each of them.
    former : int64 array
        For each node the node of the former forest that it is as before, -1 for a new one.
    settled : bool array
        Leaves of the sketch at which the former node's whole branch stands.
    """

    trees: NDArray[np.int64]
    structure: Structure
    former: NDArray[np.int64]
    settled: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Graft:
    """The grafted trees.

    Attributes
    ----------
    structure : Structure
        All trees of the forest.
    of_sketch, of_former : int64 array
        Where each node of the sketch, and each of the former forest, stands now; -1 where it is gone.
    """

    structure: Structure
    of_sketch: NDArray[np.int64]
    of_former: NDArray[np.int64]


def join_sketches(parts: Sequence[Sketch]) -> Sketch:
    """Sketches of trees that grew in several batches, as one."""
    if not parts:
        return Sketch(
            np.empty(0, np.int64),
            Structure(np.zeros(1, np.int64), np.empty(0, np.int32)),
            np.empty(0, np.int64),
            np.empty(0, bool),
        )
    return Sketch(
        np.concatenate([part.trees for part in parts]),
        join_structures([part.structure for part in parts]),
        np.concatenate([part.former for part in parts]),
        np.concatenate([part.settled for part in parts]),
    )


def graft(former: Structure, sketch: Sketch) -> Graft:
    """Put the branches and trees that stay into their places."""
    drawn = np.full(former.n_trees, -1, np.int64)
    drawn[sketch.trees] = np.arange(len(sketch.trees))
    of_sketch = np.empty(sketch.structure.n_nodes, np.int64)
    of_former = np.full(former.n_nodes, -1, np.int64)
    offset = np.empty(former.n_trees + 1, np.int64)
    ends = subtree_ends(former.right)
    place_branches(
        former.offset, ends, sketch.structure.offset, drawn, sketch.former, sketch.settled, of_sketch, of_former, offset
    )
    right = np.full(int(offset[-1]), -1, np.int32)
    link_branches(former.right, of_former, right)
    right[of_sketch[~sketch.settled]] = -1  # what stands below these, the sketch says
    link_branches(sketch.structure.right, of_sketch, right)
    return Graft(Structure(offset, right), of_sketch, of_former)

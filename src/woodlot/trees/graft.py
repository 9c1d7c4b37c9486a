r"""Branches of a former forest put into trees that were grown anew.

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


@dataclass(frozen=True, eq=False)
class Sketch:
    """Trees that were grown anew, as far as they had to be.

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
    node, at, settled = [_NONE], [_NONE], [np.empty(0, bool)]
    for tree, k in enumerate(drawn.tolist()):
        if k < 0:  # the whole tree stays
            node.append(np.array([-1]))
            at.append(former.offset[tree : tree + 1])
            settled.append(np.ones(1, bool))
        else:
            nodes = slice(int(sketch.structure.offset[k]), int(sketch.structure.offset[k + 1]))
            node.append(np.arange(nodes.start, nodes.stop))
            at.append(sketch.former[nodes])
            settled.append(sketch.settled[nodes])
    counts = [len(part) for part in node[1:]]
    sketched, origin, whole = np.concatenate(node), np.concatenate(at), np.concatenate(settled)
    ends = subtree_ends(former.right)
    sizes = np.ones(len(sketched), np.int64)
    sizes[whole] = ends[origin[whole]] - origin[whole]
    place = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    of_sketch = np.full(sketch.structure.n_nodes, -1, np.int64)
    of_sketch[sketched[sketched >= 0]] = place[:-1][sketched >= 0]
    of_former = np.full(former.n_nodes, -1, np.int64)
    kept = (origin >= 0) & ~whole
    of_former[origin[kept]] = place[:-1][kept]
    within = np.arange(int(sizes[whole].sum())) - np.repeat(np.cumsum(sizes[whole]) - sizes[whole], sizes[whole])
    branch = np.repeat(origin[whole], sizes[whole]) + within
    of_former[branch] = np.repeat(place[:-1][whole], sizes[whole]) + within

    right = np.full(int(place[-1]), -1, np.int32)
    inner = np.flatnonzero(sketch.structure.right >= 0)
    right[of_sketch[inner]] = of_sketch[sketch.structure.right[inner]]
    branching = branch[former.right[branch] >= 0]
    right[of_former[branching]] = of_former[former.right[branching]]
    offset = place[np.concatenate([[0], np.cumsum(counts)])]
    return Graft(Structure(offset, right), of_sketch, of_former)


_NONE = np.empty(0, np.int64)

"""A client leaves a whole forest: what of the forest is its, and the forest without that.

In local forests a client's trees are its own, and go as they are. In the collaborative forest every split is of one
client, which has found it in its own rows below splits of others. What stands under none of the leaver's splits does
not depend on the leaver at all; the rest is cut away, the others grow on there, and all leaves are filled again::

    round 1, 2    every client   the columns, categories and classes of the former forest
    round 3, 4    every client   agreement on keys for secure sums
    k rounds      every client   *grow*, on the trees that are left
    some rounds   every client   *adjust*

Names of categories and classes stay as they are, even if only the leaver had them. The sums of extra-trees and of the
lossless forest are of all clients at every node: there nothing can be kept, and the forest is grown again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest, categories_of
from woodlot.protocols.rows.collaborative import CollaborativePlan, adjust, pass_round
from woodlot.protocols.rows.makers import Made
from woodlot.protocols.rows.schema import Known, Rounds, agree_on_schema
from woodlot.protocols.rows.whole_forest import whole_forest
from woodlot.protocols.sums import open_sums
from woodlot.trees.alone import WholeTrees, join_trees
from woodlot.trees.forest import Structure, move_splits, subtree_ends, take_leaves


@dataclass(frozen=True, eq=False)
class Left:
    """A forest that a client has left.

    Attributes
    ----------
    removed, regrown : int64 array
        Nodes of each former tree that were destroyed, and that were made in their place.
    """

    forest: CoordinatorForest
    part: PartyForest
    removed: NDArray[np.int64]
    regrown: NDArray[np.int64]


def makers_of(forest: CoordinatorForest) -> NDArray[np.int16]:
    """Who has made which node, where that is known."""
    if forest.makers is None:
        raise DataError("who has grown which nodes of this forest is not known any more; revoke at level 3")
    return forest.makers


def drop_trees(forest: CoordinatorForest, part: PartyForest, leaver: int, n_rows: int) -> Left:
    """Local forests without the trees of one client; nobody is asked anything.

    Parameters
    ----------
    forest, part
        The whole model.
    leaver : int
        The client's number.
    n_rows : int
        Rows of the others.
    """
    makers, structure = makers_of(forest), forest.structure
    keep = makers[structure.offset[:-1]] != leaver
    if not keep.any():
        raise DataError("all trees are the leaver's; revoke at level 3, so that the others grow some")
    whole = WholeTrees(structure, part.splits)
    trees = join_trees([whole.take(int(t), int(t) + 1) for t in np.flatnonzero(keep)])
    sizes = np.diff(structure.offset)
    stays = np.repeat(keep, sizes)
    leaf = stays[structure.right < 0]
    kept = makers[stays]
    left = replace(
        forest,
        structure=trees.structure,
        owner=forest.owner[stays],
        feature=forest.feature[stays],
        gain=forest.gain[stays],
        leaves=take_leaves(forest.leaves, np.flatnonzero(leaf)),
        n_rows=n_rows,
        makers=np.where(kept > leaver, kept - 1, kept).astype(np.int16),
    )
    removed = np.where(keep, 0, sizes)
    return Left(left, replace(part, structure=trees.structure, splits=trees.splits), removed, np.zeros_like(removed))


def cut_back(trees: WholeTrees, makers: NDArray[np.int16], leaver: int) -> tuple[WholeTrees, Made, NDArray[np.int64]]:
    """Trees without the splits of one client and all under them.

    Returns
    -------
    trees, makers, stumps
        What is left; who has made it, by the numbers of those who stay; and how many of each tree's leaves were a split
        of the leaver.
    """
    structure = trees.structure
    stump = makers == leaver
    below = np.zeros(structure.n_nodes + 1, np.int64)
    np.add.at(below, np.flatnonzero(stump) + 1, 1)
    np.add.at(below, subtree_ends(structure.right)[stump], -1)
    stays = np.cumsum(below[:-1]) == 0
    place = np.cumsum(stays) - 1
    inner = stays & (structure.right >= 0) & ~stump
    right = np.full(structure.n_nodes, -1, np.int32)
    right[inner] = place[structure.right[inner]]
    offset = np.concatenate([[0], np.cumsum(stays)])[structure.offset].astype(np.int64)
    left = WholeTrees(Structure(offset, right[stays]), move_splits(trees.splits, np.where(inner, place, -1)))
    who = np.where(inner, makers, -1)[stays]
    number = np.repeat(np.arange(structure.n_trees), np.diff(structure.offset))
    stumps = np.bincount(number[stump & stays], minlength=structure.n_trees)
    return left, np.where(who > leaver, who - 1, who).astype(np.int16), stumps


def grow_without(
    plan: CollaborativePlan, clients: Sequence[str], forest: CoordinatorForest, part: PartyForest, leaver: int
) -> Rounds:
    """Coordinator: the collaborative forest without one client, of which nothing is asked; returns what is `Left`.

    Parameters
    ----------
    plan : CollaborativePlan
        What the forest was grown by.
    clients : sequence of str
        Those who stay.
    forest, part
        The whole model; it is not changed.
    leaver : int
        The client's number among all.
    """
    known = Known(part.names, categories_of(part.codings), forest.classes)
    schema = yield from agree_on_schema(clients, plan.task, plan.max_bins, known)
    session = yield from open_sums(clients, mode=plan.sums, allow_two=plan.allow_two)
    left, who, stumps = cut_back(WholeTrees(forest.structure, part.splits), makers_of(forest), leaver)
    trees, makers = yield from pass_round(plan, clients, schema, left, who)
    leaves, gain = yield from adjust(plan, session, schema, trees)
    survivors = np.diff(left.structure.offset) - stumps
    new, whole = whole_forest(trees, leaves, gain, schema, makers)
    return Left(
        new,
        whole,
        np.diff(forest.structure.offset) - survivors,
        np.diff(trees.structure.offset) - survivors,
    )

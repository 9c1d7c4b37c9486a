"""What the messages of a prediction tell the coordinator: outcomes of splits, hence the order of values.

An open prediction (``Decisions``) tells the outcome of every split that a row can reach by the party's own splits; a
sealed one (``SealedLeaves``) tells the leaf of each row, hence the outcomes on its way and no other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woodlot.leaks.role_views import SplitRows
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical.forest_messages import Decisions
from woodlot.protocols.vertical.sealed import leaves_per_tree
from woodlot.protocols.vertical.sealed_messages import AskSealed, SealedLeaves
from woodlot.trees.forest import subtree_ends
from woodlot.trees.kernels._bits import count_ones, scatter_bits
from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.reach import Views
from woodlot.trees.kernels.seal import find_zeros
from woodlot.trees.wire import blocks_of, chunks_of, row_words, view_trees

SEALED_NUMBERS = 300_000_000
"""Rows times leaves of a sealed prediction at most: some minutes, and gigabytes between real parties."""


def open_outcomes(forest: CoordinatorForest, party: str, answer: Decisions, n_rows: int) -> SplitRows:
    """Every outcome that one party's answer tells.

    Parameters
    ----------
    forest : CoordinatorForest
        The coordinator's part of the model: the shape of the trees, and whose coded column splits each node.
    answer : Decisions
        What the party has sent for the rows to predict.

    """
    number = forest.parties.index(party)
    views, _ = view_trees(forest.structure, [forest.owner == number])
    known = row_words(n_rows, None)
    starts = np.append(0, np.cumsum(answer.lengths.astype(np.int64)))
    places, rows, right = [], [], []
    for chunk, part in enumerate(chunks_of(n_rows)):
        stream = np.ascontiguousarray(answer.stream[starts[chunk] : starts[chunk + 1]])
        room = 64 * len(stream)
        found = np.empty(room, np.int32), np.empty(room, np.uint32), np.empty(room, np.bool_)
        n = _list_outcomes(views, stream, np.ascontiguousarray(known[blocks_of(part)]), *found)
        places.append(found[0][:n].copy())
        rows.append(found[1][:n] + np.uint32(part.start))
        right.append(found[2][:n].copy())
    nodes = np.flatnonzero(forest.owner == number)
    return _by_node(forest, nodes, np.concatenate(places), np.concatenate(rows), np.concatenate(right))


@kernel
def _list_outcomes(
    views: Views,
    stream: NDArray[np.uint64],
    known: NDArray[np.uint64],
    place: NDArray[np.int32],
    row: NDArray[np.uint32],
    right: NDArray[np.bool_],
) -> int:
    """Write node, row and side of every bit of a chunk's stream; returns how many there are.

    The order is that of ``encode_decisions``: tree, block of 64 rows, owned node in preorder, row.
    """
    masks = np.zeros(2 * len(views.node) + 1, np.uint64)
    at = np.int64(0)
    n = 0
    for tree in range(views.first.shape[1] - 1):
        first, last = views.first[0, tree], views.first[0, tree + 1]
        for block in range(len(known)):
            masks[0] = known[block]
            k = first
            while k < last:
                rows = masks[views.up[k]]
                if rows == np.uint64(0):
                    k = views.skip[k]
                    continue
                count = count_ones(rows)
                used = at & 63
                packed = stream[at >> 6] >> np.uint64(used)
                if used + count > 64:
                    packed |= stream[(at >> 6) + 1] << np.uint64(64 - used)
                at += count
                bits = scatter_bits(packed, rows)
                masks[2 * (k - first) + 1] = rows & ~bits
                masks[2 * (k - first) + 2] = bits
                for bit in range(64):
                    if (rows >> np.uint64(bit)) & np.uint64(1):
                        place[n] = k
                        row[n] = 64 * block + bit
                        right[n] = (bits >> np.uint64(bit)) & np.uint64(1)
                        n += 1
                k += 1
    return n


class SealedReader:
    """The coordinator's side of a sealed prediction, fed with its messages: they are too many to be kept.

    The leaf of a row is where the numbers of all parties add up to 0.

    Parameters
    ----------
    forest : CoordinatorForest
        The coordinator's part of the model.
    n_rows : int
        Rows that are predicted.
    victim : str
        The party whose own zeros are counted: each would tell a leaf that its splits allow.

    """

    def __init__(self, forest: CoordinatorForest, n_rows: int, victim: str) -> None:
        self.leaf = np.full((n_rows, forest.structure.n_trees), -1, np.int32)
        self.numbers, self.zeros = 0, 0
        self._tree_of = np.repeat(np.arange(forest.structure.n_trees, dtype=np.int32), leaves_per_tree(forest))
        self._victim = victim
        self._asked: dict[int, AskSealed] = {}
        self._sums: dict[int, tuple[int, NDArray[np.uint64]]] = {}

    def record(self, sender: str, receiver: str, message: Message) -> None:
        """Take one message."""
        if isinstance(message, AskSealed):
            self._asked[message.round] = message
        if not isinstance(message, SealedLeaves):
            return
        if sender == self._victim:
            self.numbers += len(message.values)
            self.zeros += int((message.values == 0).sum())
        block = self._asked[message.round]
        n, total = self._sums.pop(message.round, (0, np.zeros(len(message.values), np.uint64)))
        if n + 1 < len(block.clients):
            self._sums[message.round] = n + 1, total + message.values
            return
        rows = slice(block.first_row, block.first_row + block.n_rows)
        found = (total + message.values).reshape(block.n_rows, block.n_leaves)
        find_zeros(found, block.first_leaf, self._tree_of, self.leaf[rows])


def outcomes_on_the_way(forest: CoordinatorForest, party: str, leaf: NDArray[np.int32]) -> SplitRows:
    """The outcomes of a party's splits on the way to known leaves.

    Parameters
    ----------
    leaf : int32 array of shape (n_rows, n_trees)
        Number of each row's leaf, counted over all trees.

    """
    right, offset = forest.structure.right, forest.structure.offset
    until = subtree_ends(right)
    position = np.flatnonzero(right < 0)[leaf]
    nodes = np.flatnonzero(forest.owner == forest.parties.index(party))
    tree = np.searchsorted(offset, nodes, side="right") - 1
    places, rows, sides = [], [], []
    order = np.argsort(position, axis=0, kind="stable")
    for place, (node, of_tree) in enumerate(zip(nodes, tree, strict=True)):
        ranked = order[:, of_tree]
        first, middle, last = np.searchsorted(position[ranked, of_tree], [node, right[node], until[node]])
        places.append(np.full(last - first, place, np.int32))
        rows.append(ranked[first:last].astype(np.uint32))
        sides.append(np.arange(first, last) >= middle)
    if not places:
        places, rows, sides = [np.empty(0, np.int32)], [np.empty(0, np.uint32)], [np.empty(0, bool)]
    return _by_node(forest, nodes, np.concatenate(places), np.concatenate(rows), np.concatenate(sides))


def _by_node(
    forest: CoordinatorForest,
    nodes: NDArray[np.int64],
    place: NDArray[np.int32],
    rows: NDArray[np.uint32],
    right: NDArray[np.bool_],
) -> SplitRows:
    """Outcomes of some nodes as splits; nodes at which all rows go one way tell nothing of an order."""
    order = np.argsort(place, kind="stable")
    sizes = np.bincount(place, minlength=len(nodes))
    n_right = np.bincount(place, right, minlength=len(nodes))
    first = np.searchsorted(forest.feature_party, np.arange(len(forest.parties)))
    owner = forest.owner[nodes].astype(np.int64)
    splits = SplitRows(
        forest.parties,
        owner,
        forest.feature[nodes].astype(np.int64) - first[owner] + 1,
        np.append(0, np.cumsum(sizes)),
        rows[order],
        ~right[order],
    )
    return splits.select((n_right > 0) & (n_right < sizes))

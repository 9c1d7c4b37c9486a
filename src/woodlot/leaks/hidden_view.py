"""What the two servers of a hidden training are told, rebuilt from their messages: trees of counts, and no rows.

The label holder and the second server see the same trees: which columns are tried at which node, how many rows of the
node are in each bin of them, which column splits it, and how many rows go left. The label holder is told sums of
labels by bin as well; `with_label_sums` adds what they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import LocalProtocolError
from woodlot.leaks.case import Told
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.hidden.hidden_messages import AskPairs, AskRows, OpenBins, PlantHidden, StartServer

NO_NODE = -1


@dataclass(frozen=True, eq=False)
class OpenedTrees:
    """Everything that a server is told of all trees.

    Attributes
    ----------
    n_rows : int
        Rows of every root.
    owners : tuple of str
        The parties.
    owner : int64 array
        Of each column, the place of its party in ``owners``.
    n_codes : int64 array
        Bins of each column; this number itself is the bin of missing values.
    tree, size, left, right, column : int64 array
        Of each node: its tree, its rows, its children, and the column that splits it. -1: none, or not known.
    goes_left : float32 array, shape (nodes, bins)
        Of each bin of the column that splits a node, which part of it goes left.
    pair_node, pair_column, pair_start : int64 array
        Node and column of each opened histogram, and where its bins begin in ``counts``.
    pair_shift : int64 array
        How many low bits of the bins are dropped: bins v and w count together where v >> shift is w >> shift.
    counts : float64 array
        How many rows are in each bin, at place ``v >> shift`` of its histogram; missing values in the last place.
    label_sums : float64 array of shape (classes, bins), or None
        Weight of each class in each bin, beside ``counts``; the label holder alone is told.

    """

    n_rows: int
    owners: tuple[str, ...]
    owner: NDArray[np.int64]
    n_codes: NDArray[np.int64]
    tree: NDArray[np.int64]
    size: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    column: NDArray[np.int64]
    goes_left: NDArray[np.float32]
    pair_node: NDArray[np.int64]
    pair_column: NDArray[np.int64]
    pair_start: NDArray[np.int64]
    pair_shift: NDArray[np.int64]
    counts: NDArray[np.float64]
    label_sums: NDArray[np.float64] | None = None

    @property
    def n_trees(self) -> int:
        """Trees."""
        return int(self.tree.max(initial=-1)) + 1

    @property
    def roots(self) -> NDArray[np.int64]:
        """The first node of each tree."""
        return np.unique(self.tree, return_index=True)[1]

    def of_party(self, party: str) -> NDArray[np.int64]:
        """Numbers of a party's columns."""
        return np.flatnonzero(self.owner == self.owners.index(party))

    def marginals(self, column: int) -> NDArray[np.float64]:
        """How many rows are in each bin of a column, by its largest histogram; bins of one cell share evenly."""
        missing = int(self.n_codes[column])
        mine = np.flatnonzero(self.pair_column == column)
        if len(mine) == 0:
            return np.full(missing + 1, self.n_rows / (missing + 1))
        largest = mine[np.argmax(self.size[self.pair_node[mine]])]
        start, cell = self.pair_start[largest], coarse(np.arange(missing + 1), int(self.pair_shift[largest]), missing)
        return np.asarray(self.counts[start + cell] / np.bincount(cell, minlength=missing + 1)[cell], np.float64)


def opened_trees(told: Iterable[Told], server: str) -> OpenedTrees:
    """What both servers are told, from the messages between them.

    Parameters
    ----------
    told : iterable of (sender, receiver, message)
        Messages that the label holder or the second server gets and sends.
    server : str
        The second server.

    Raises
    ------
    LocalProtocolError
        If there is no hidden training among the messages.

    """
    trees: _Trees | None = None
    for _, receiver, message in told:
        if receiver != server:
            continue
        if isinstance(message, StartServer):
            trees = _Trees(message)
        if trees is None:
            continue
        match message:
            case PlantHidden():
                trees.plant(message)
            case AskPairs():
                trees.ask(message)
            case OpenBins():
                trees.count(message)
            case AskRows():
                trees.split(message)
            case _:
                pass
    if trees is None:
        raise LocalProtocolError("there is no hidden training among these messages")
    return trees.opened()


class _Trees:
    """Nodes and histograms as they become known."""

    def __init__(self, start: StartServer) -> None:
        self._start = start
        self._n_codes = start.n_codes.astype(np.int64)
        self._bins = int(self._n_codes.max(initial=0)) + 1
        self._tree: list[int] = []
        self._size: list[int] = []
        self._left: list[int] = []
        self._right: list[int] = []
        self._column: list[int] = []
        self._table: dict[int, NDArray[np.float32]] = {}
        self._pairs: list[tuple[int, int, int]] = []
        self._counts: list[NDArray[np.int64]] = []
        self._place: dict[tuple[int, int], int] = {}
        self._open: NDArray[np.int64] = np.empty(0, np.int64)
        self._split: NDArray[np.int64] = np.empty(0, np.int64)
        self._new = self._divided = False

    def _make(self, tree: int, size: int) -> int:
        for values, value in (
            (self._tree, tree),
            (self._size, size),
            (self._left, NO_NODE),
            (self._right, NO_NODE),
            (self._column, -1),
        ):
            values.append(value)
        return len(self._tree) - 1

    def plant(self, message: PlantHidden) -> None:
        self._slots = message.columns.astype(np.int64).reshape(message.n_trees, -1)
        self._first = message.first_tree
        trees = range(message.first_tree, message.first_tree + message.n_trees)
        self._open = np.array([self._make(tree, self._start.n_rows) for tree in trees], np.int64)
        self._new, self._divided = True, False

    def ask(self, message: AskPairs) -> None:
        if self._divided:
            self._descend(message)
        elif self._new:
            self._open = self._open[unpack(message.is_open, len(self._open), "open roots").astype(bool)]
        self._new = self._divided = False
        node = self._open[message.node.astype(np.int64)]
        tree = np.array(self._tree)[node] - self._first
        column = self._slots[tree, message.slot.astype(np.int64)]
        self._asked = list(zip(node.tolist(), column.tolist(), message.shift.astype(np.int64).tolist(), strict=True))

    def count(self, message: OpenBins) -> None:
        codes, at = message.codes.astype(np.int64), 0
        for node, column, shift in self._asked:
            n, missing = self._size[node], int(self._n_codes[column])
            cells, last = codes[at : at + n], (missing - 1) >> shift
            self._place[node, column] = len(self._pairs)
            self._pairs.append((node, column, shift))
            # the cell after that of the last value is the one of missing values
            self._counts.append(np.bincount(np.where(cells > last, missing, cells), minlength=missing + 1))
            at += n

    def split(self, message: AskRows) -> None:
        goes_on = unpack(message.goes_on, len(self._open), "split nodes").astype(bool)
        self._split = self._open[goes_on]
        for node, slot in zip(self._split.tolist(), message.slot.astype(np.int64).tolist(), strict=True):
            self._column[node] = int(self._slots[self._tree[node] - self._first, slot])
        self._divided = True

    def _descend(self, message: AskPairs) -> None:
        sizes = np.array([self._size[node] for node in self._split.tolist()], np.int64)
        sides = unpack(message.left, int(sizes.sum()), "sides")
        lefts = np.add.reduceat(sides.astype(np.int64), np.cumsum(sizes) - sizes)
        children = []
        for node, n_left in zip(self._split.tolist(), lefts.tolist(), strict=True):
            self._left[node] = self._make(self._tree[node], n_left)
            self._right[node] = self._make(self._tree[node], self._size[node] - n_left)
            place = self._place[node, self._column[node]]
            counts, shift = self._counts[place], self._pairs[place][2]
            bins = np.arange(len(counts))
            self._table[node] = _goes_left(counts, n_left)[coarse(bins, shift, len(counts) - 1)]
            children += [self._left[node], self._right[node]]
        is_open = unpack(message.is_open, len(children), "open children").astype(bool)
        self._open = np.array(children, np.int64)[is_open]

    def opened(self) -> OpenedTrees:
        lengths = np.array([len(counts) for counts in self._counts], np.int64)
        pairs = np.array(self._pairs, np.int64).reshape(-1, 3)
        goes_left = np.zeros((len(self._tree), self._bins), np.float32)
        for node, table in self._table.items():
            goes_left[node, : len(table)] = table
        start = self._start
        columns_of = start.columns_of.astype(np.int64)
        return OpenedTrees(
            n_rows=start.n_rows,
            owners=start.owners,
            owner=np.repeat(np.arange(len(columns_of)), columns_of),
            n_codes=self._n_codes,
            tree=np.array(self._tree, np.int64),
            size=np.array(self._size, np.int64),
            left=np.array(self._left, np.int64),
            right=np.array(self._right, np.int64),
            column=np.array(self._column, np.int64),
            goes_left=goes_left,
            pair_node=pairs[:, 0].copy(),
            pair_column=pairs[:, 1].copy(),
            pair_start=np.cumsum(lengths) - lengths,
            pair_shift=pairs[:, 2].copy(),
            counts=np.concatenate([np.empty(0), *self._counts]).astype(np.float64),
        )


def _goes_left(counts: NDArray[np.int64], n_left: int) -> NDArray[np.float32]:
    """Which bins go left where so many rows do: those below a cut, with or without the missing ones.

    Where no cut fits, the split is by a set of categories: then every bin goes left in part.
    """
    below = np.cumsum(counts[:-1])
    for missing_left in (0, 1):
        cuts = np.flatnonzero(below == n_left - missing_left * counts[-1])
        if len(cuts):
            table: NDArray[np.float32] = (np.arange(len(counts)) <= cuts[0]).astype(np.float32)
            table[-1] = missing_left
            return table
    return np.full(len(counts), n_left / max(int(counts.sum()), 1), np.float32)


def with_label_sums(
    trees: OpenedTrees, codes: NDArray[np.int64], numbers: NDArray[np.int64], draws: NDArray[np.int64]
) -> OpenedTrees:
    """Add the weights of classes by bin, as the label holder opens them.

    A leak test has all parties in one process and knows the rows, so it adds up what the shares add up to.

    Parameters
    ----------
    trees : OpenedTrees
        The trees.
    codes : int64 array of shape (columns, rows)
        The bin of every value.
    numbers : int64 array
        Class of every row.
    draws : int64 array of shape (trees, rows)
        How often each tree draws each row.

    """
    classes = int(numbers.max()) + 1
    rows = rows_of_nodes(trees, codes)
    sums = np.zeros((classes, len(trees.counts)))
    for node, column, start, shift in zip(
        trees.pair_node.tolist(),
        trees.pair_column.tolist(),
        trees.pair_start.tolist(),
        trees.pair_shift.tolist(),
        strict=True,
    ):
        mine = rows[node]
        bins = int(trees.n_codes[column]) + 1
        cell = numbers[mine] * bins + coarse(codes[column, mine], shift, bins - 1)
        told = np.bincount(cell, draws[trees.tree[node], mine], minlength=bins * classes)
        sums[:, start : start + bins] = told.reshape(classes, bins)
    return replace(trees, label_sums=sums)


def coarse(bins: NDArray[np.int64], shift: int, missing: int) -> NDArray[np.int64]:
    """Bins without their low bits; missing values stay what they are."""
    return np.where(bins == missing, missing, bins >> shift)


def rows_of_nodes(trees: OpenedTrees, codes: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """The true rows of every node: for marking, and for what the label holder opens."""
    rows = {int(root): np.arange(trees.n_rows) for root in trees.roots}
    for node in range(len(trees.tree)):
        if trees.left[node] == NO_NODE:
            continue
        mine = rows[node]
        is_left = trees.goes_left[node, codes[trees.column[node], mine]] > 0.5
        rows[int(trees.left[node])], rows[int(trees.right[node])] = mine[is_left], mine[~is_left]
    return rows


def upper_part(trees: OpenedTrees, smallest: int) -> OpenedTrees:
    """The trees as if nodes of fewer rows were leaves of which nothing is counted: less to fit where rows are many."""
    kept = trees.size[trees.pair_node] >= smallest
    lengths = trees.n_codes[trees.pair_column] + 1
    cells = np.repeat(kept, lengths)
    has_part = np.zeros(len(trees.tree), bool)
    has_part[trees.pair_node[kept]] = True
    goes_on = (trees.left != NO_NODE) & (has_part[trees.left] | has_part[trees.right])
    return replace(
        trees,
        left=np.where(goes_on, trees.left, NO_NODE),
        right=np.where(goes_on, trees.right, NO_NODE),
        pair_node=trees.pair_node[kept],
        pair_column=trees.pair_column[kept],
        pair_start=np.cumsum(lengths[kept]) - lengths[kept],
        pair_shift=trees.pair_shift[kept],
        counts=trees.counts[cells],
        label_sums=None if trees.label_sums is None else trees.label_sums[:, cells],
    )

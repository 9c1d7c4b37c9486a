"""The growing trees of the lossless forest at the coordinator: open nodes, what is asked of them, what was found.

One level::

    while (asked := growing.ask()) is not None:        candidates of the nodes that have no split yet
        growing.take(asked.nodes, asked.cells, sums)   the best split of each, from the sums over all clients
    growing.split()                                    the next level's nodes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core import bits
from woodlot.protocols.rows.lossless.bins import CommonColumns
from woodlot.protocols.rows.row_messages import GrowthSettings
from woodlot.trees.alone import WholeTrees
from woodlot.trees.cells import ENTROPY, GINI, TARGETS, Cells
from woodlot.trees.forest import Leaves, Splits, gather_sets
from woodlot.trees.kernels.cells import narrow_pairs, place_all
from woodlot.trees.kernels.wide import fill_xlogx
from woodlot.trees.parallel import effective_jobs
from woodlot.trees.rules import XLOGX_SIZE, entropy_scale
from woodlot.trees.sampling import Bootstrap, tree_keys
from woodlot.trees.skeleton import Skeleton

_KINDS = {"gini": GINI, "entropy": ENTROPY, "squared_error": TARGETS}
_PLACES_AT_ONCE = 1 << 22
THREADS = effective_jobs(-1)
"""Of the search: the coordinator's own work, whatever the clients do."""


@dataclass(frozen=True, eq=False)
class Nodes:
    """What is known of some nodes: the classes that occur and their weights (of targets: one), rows, sum of targets."""

    n_classes: NDArray[np.int64]
    classes: NDArray[np.int64]
    totals: NDArray[np.int64]
    rows: NDArray[np.int64]
    sums: NDArray[np.int64]

    @classmethod
    def of_table(cls, table: NDArray[np.int64], rows: NDArray[np.int64], sums: NDArray[np.int64]) -> Nodes:
        """From the weights of all classes in all nodes."""
        node, classes = np.nonzero(table)
        return cls(np.bincount(node, minlength=len(table)), classes, table[node, classes], rows.copy(), sums.copy())

    @property
    def start(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.n_classes)])

    @property
    def weight(self) -> NDArray[np.int64]:
        return np.diff(np.concatenate([[0], np.cumsum(self.totals)])[self.start])

    def entries(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the classes of some nodes stand, node after node."""
        return _ranges(self.start[nodes], self.n_classes[nodes])

    def take(self, nodes: NDArray[np.int64]) -> Nodes:
        at = self.entries(nodes)
        return Nodes(self.n_classes[nodes], self.classes[at], self.totals[at], self.rows[nodes], self.sums[nodes])


@dataclass(frozen=True, eq=False)
class AskedSums:
    """Numbers to be summed, and the open nodes that they are of."""

    nodes: NDArray[np.int64]
    cells: Cells


@dataclass(frozen=True, eq=False)
class _Told:
    """The splits of a level, in the order of the split nodes."""

    numbers: NDArray[np.int64]
    feature: NDArray[np.int32]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    missing_left: NDArray[np.uint8]
    sets: list[NDArray[np.uint8]]
    gain: NDArray[np.float64]


class _Best:
    """The best splits found at the open nodes of a level, so far; ``total`` is what the clients that are left have."""

    def __init__(self, nodes: Nodes) -> None:
        n = len(nodes.n_classes)
        self.feature = np.full(n, -1, np.int32)
        self.closed = np.zeros(n, bool)
        self.low, self.high = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.missing_left = np.zeros(n, np.uint8)
        self.gain = np.zeros(n)
        self.left, self.total = np.zeros(len(nodes.classes), np.int64), nodes.totals.copy()
        self.left_rows, self.rows = np.zeros(n, np.int64), nodes.rows.copy()
        self.left_sum, self.sums = np.zeros(n, np.int64), nodes.sums.copy()
        self.sets: dict[int, NDArray[np.uint8]] = {}


class Growing:
    """Trees that grow, level by level.

    Parameters
    ----------
    settings : GrowthSettings
        The rules; counts of rows are of all clients' together.
    criterion : {"gini", "entropy", "squared_error"}
        What splits improve.
    columns : CommonColumns
        The codes.
    feature_keys : uint64 array
        Stable code of each column, from which the order of candidates follows.
    roots : Nodes
        What each tree has drawn.
    every_row : int array
        Trees that nobody has drawn a row for; they take every row once.
    n_outputs : int
        Classes, of which some may have been drawn by no tree; 1 for targets.
    with_rows, target_bits, word_bits
        As in `Cells`.
    """

    def __init__(
        self,
        settings: GrowthSettings,
        criterion: str,
        columns: CommonColumns,
        feature_keys: NDArray[np.uint64],
        roots: Nodes,
        every_row: NDArray[np.int64],
        *,
        n_outputs: int,
        with_rows: bool,
        target_bits: int,
        word_bits: int,
    ) -> None:
        self._n_outputs = n_outputs
        self.target_bits = target_bits
        self.word_bits = word_bits
        self._with_rows = with_rows
        self._settings = settings
        self._kind = _KINDS[criterion]
        self._columns = columns
        self._feature_keys = feature_keys
        n_trees = len(roots.n_classes)
        self._root_weight = roots.weight
        self._scale, self._xlogx = 1, np.zeros(1, np.int64)
        if self._kind == ENTROPY:
            heaviest = int(self._root_weight.max())
            self._scale = entropy_scale(Bootstrap(0, heaviest, None), heaviest)
            if heaviest <= XLOGX_SIZE:
                self._xlogx = np.zeros(heaviest + 1, np.int64)
                fill_xlogx(self._xlogx, float(self._scale))
        self._skeleton = Skeleton(tree_keys(settings.order_seed, range(n_trees)))
        # of every node by its number: what is above it, and how it was split
        self._parent = np.full(n_trees, -1, np.int64)
        self._is_right = np.zeros(n_trees, np.uint8)
        self._tree = np.arange(n_trees)
        self._feature = np.full(n_trees, -1, np.int32)
        self._low, self._high = np.full(n_trees, -1, np.int64), np.full(n_trees, -1, np.int64)
        self._missing_left = np.zeros(n_trees, np.uint8)
        self._leaves: list[tuple[NDArray[np.int64], Nodes]] = []
        self._splits: list[_Told] = []
        self.every_row = every_row
        self._split_mask: NDArray[np.bool_] = np.zeros(0, bool)
        self._close(roots, np.arange(n_trees))

    @property
    def n_open(self) -> int:
        """Open nodes."""
        return len(self._skeleton.frontier)

    @property
    def depth(self) -> int:
        """Depth of the open nodes."""
        return self._skeleton.depth

    @property
    def n_finished(self) -> int:
        """Trees without open nodes."""
        return len(self._root_weight) - len(np.unique(self._tree[self._skeleton.frontier]))

    def _close(self, nodes: Nodes, numbers: NDArray[np.int64]) -> None:
        """Decide which of the nodes just made stay open; the others are leaves."""
        s = self._settings
        is_open = np.full(len(numbers), self._skeleton.depth < s.max_depth)
        if self._with_rows or not s.bootstrap:
            is_open &= (nodes.rows >= s.min_samples_split) & (nodes.rows >= 2 * s.min_samples_leaf)
        if self._kind != TARGETS:
            is_open &= nodes.n_classes > 1
        closed = np.flatnonzero(~is_open)
        self._leaves.append((numbers[closed], nodes.take(closed)))
        self._open_mask = is_open
        self._nodes = nodes.take(self._skeleton.keep_open(is_open))
        self._best = _Best(self._nodes)
        self._tried = 0
        self._told = False

    # --- asking ---

    def ask(self) -> AskedSums | None:
        """The next candidates of the nodes that have no split yet; None where all that can be has been tried."""
        n_features = len(self._feature_keys)
        while self._tried < n_features:
            # as many again as were tried before: few rounds, however many features
            upto = min(n_features, self._tried + max(self._settings.n_candidates, self._tried))
            pending = np.flatnonzero((self._best.feature < 0) & ~self._best.closed)
            first, self._tried = self._tried, upto
            if len(pending) == 0:
                return None
            asked = self._cells(pending, first, upto)
            if len(asked.nodes):
                return asked
        return None

    def _cells(self, nodes: NDArray[np.int64], first: int, upto: int) -> AskedSums:
        """Features ``first`` to ``upto`` in the order of each node, but for those that are constant there."""
        chosen = np.empty((len(nodes), upto - first), np.int64)
        at_once = max(1, _PLACES_AT_ONCE // len(self._feature_keys))
        for a in range(0, len(nodes), at_once):
            keys = self._skeleton.key[nodes[a : a + at_once]]
            places = np.empty((len(keys), len(self._feature_keys)), np.uint64)
            place_all(keys, self._feature_keys, places)
            chosen[a : a + at_once] = np.argsort(places, axis=1)[:, first:upto]
        feature, owner = chosen.ravel(), np.repeat(np.arange(len(nodes)), upto - first)
        columns = self._columns
        lowest, highest = np.zeros(len(feature), np.int64), columns.n_codes[feature] - 1
        missing = columns.has_missing[feature].copy()
        number = np.flatnonzero(columns.categorical[feature] == 0)
        low, high, gone = lowest[number], highest[number], missing[number]
        narrow_pairs(
            self._skeleton.frontier[nodes[owner[number]]], feature[number], self._parent, self._is_right, self._feature,
            self._low, self._high, self._missing_left, low, high, gone,
        )  # fmt: skip
        lowest[number], highest[number], missing[number] = low, high, gone
        codes = np.maximum(highest - lowest + 1, 0)
        kept = np.flatnonzero(codes + missing > 1)
        n_pairs = np.bincount(owner[kept], minlength=len(nodes))
        some = np.flatnonzero(n_pairs)
        here = self._nodes.take(nodes[some])
        width = np.frexp(here.weight.astype(np.float64))[1]
        return AskedSums(
            nodes[some],
            Cells(
                width.astype(np.uint8),
                here.n_classes,
                here.classes,
                n_pairs[some],
                feature[kept],
                lowest[kept],
                codes[kept],
                missing[kept],
                self._with_rows,
                self.target_bits,
                self.word_bits,
            ),
        )

    def splits_to_tell(self) -> dict[str, Any]:
        """Fields of `CountCells`: the splits of the last level, told once in each level."""
        told = self._splits[-1] if self._splits and not self._told else None
        roots = self._skeleton.depth == 0 and not self._told
        self._told = True
        none = np.empty(0, np.uint8)
        fields: dict[str, Any] = {
            "level": self._skeleton.depth,
            "split": none,
            "feature": none,
            "cut": none,
            "missing_left": none,
            "set_length": none,
            "sets": none,
            "is_open": bits.pack(self._open_mask) if roots or told is not None else none,
            "every_row": (self.every_row if roots else self.every_row[:0]).astype(np.uint32),
        }
        if told is not None:
            fields |= {
                "split": bits.pack(self._split_mask),
                "feature": bits.smallest_unsigned(told.feature),
                "cut": bits.smallest_unsigned(told.low),
                "missing_left": bits.pack(told.missing_left),
                "set_length": bits.smallest_unsigned(np.array([len(some) for some in told.sets], np.int64)),
                "sets": np.concatenate([none, *told.sets]),
            }
        return fields

    def cells_to_tell(self, cells: Cells) -> dict[str, Any]:
        """Fields of `CountCells`: which numbers are asked for."""
        return {
            "width": cells.width,
            "n_classes": bits.smallest_unsigned(cells.n_classes),
            "classes": bits.smallest_unsigned(cells.classes),
            "n_pairs": bits.smallest_unsigned(cells.n_pairs),
            "pair_feature": bits.smallest_unsigned(cells.feature),
            "first": bits.smallest_unsigned(cells.first),
            "codes": bits.smallest_unsigned(cells.codes),
            "missing": bits.pack(cells.missing),
            "word_bits": cells.word_bits,
        }

    # --- searching ---

    def take(self, nodes: NDArray[np.int64], cells: Cells, sums: NDArray[np.int64], *, whole: bool) -> None:
        """Search sums for the best split of each of these nodes.

        Parameters
        ----------
        nodes : int64 array
            Which open nodes.
        cells : Cells
            The layout of the sums.
        sums : int64 array
            Over all clients.
        whole : bool
            Whether no client has dropped out: then the sums must be of the rows that are known to be there.
        """
        try:
            found = cells.search(
                sums,
                categorical=self._columns.categorical,
                n_codes=self._columns.n_codes,
                min_leaf=self._settings.min_samples_leaf,
                kind=self._kind,
                first_wins=self._tried > self._settings.n_candidates,
                xlogx=self._xlogx,
                scale=self._scale,
                n_jobs=THREADS,
            )
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from None
        best, at = self._best, self._nodes.entries(nodes)
        if whole and not np.array_equal(found.total, self._nodes.totals[at]):
            raise RemoteProtocolError("the sums of a node are not those of its rows")
        best.total[at], best.rows[nodes], best.sums[nodes] = found.total, found.rows, found.sums
        best.left[at], best.left_rows[nodes], best.left_sum[nodes] = found.left, found.left_rows, found.left_sum
        splits = (found.feature >= 0) & (found.improves == 1)
        best.feature[nodes] = np.where(splits, found.feature, -1)
        best.closed[nodes] = (found.rows == 0) | ((found.feature >= 0) & ~splits)
        best.low[nodes], best.high[nodes] = found.low, found.high
        best.missing_left[nodes] = found.missing_left
        best.gain[nodes] = np.where(splits, found.score - found.whole, 0.0)
        by_set = np.flatnonzero(splits & (self._columns.categorical[found.feature] == 1))
        for k in by_set.tolist():
            n_codes = int(self._columns.n_codes[found.feature[k]])
            best.sets[int(nodes[k])] = np.packbits(found.goes_left[k, : n_codes + 1], bitorder="little")

    def split(self) -> None:
        """Split the open nodes that have a split; the others become leaves."""
        best, nodes = self._best, self._nodes
        is_split = best.feature >= 0
        stay = np.flatnonzero(~is_split)
        self._leaves.append((self._skeleton.frontier[stay], nodes.take(stay)))
        chosen = np.flatnonzero(is_split)
        parents = self._skeleton.frontier[chosen]
        empty = np.empty(0, np.uint8)
        self._splits.append(
            _Told(
                parents,
                best.feature[chosen],
                best.low[chosen],
                best.high[chosen],
                best.missing_left[chosen],
                [best.sets.get(node, empty) for node in chosen.tolist()],
                best.gain[chosen],
            )
        )
        self._split_mask = is_split
        self._feature[parents], self._missing_left[parents] = best.feature[chosen], best.missing_left[chosen]
        self._low[parents], self._high[parents] = best.low[chosen], best.high[chosen]
        children = self._skeleton.split(is_split)
        n = len(children)
        self._parent = np.concatenate([self._parent, np.repeat(parents, 2)])
        self._is_right = np.concatenate([self._is_right, np.arange(n, dtype=np.uint8) & np.uint8(1)])
        self._tree = np.concatenate([self._tree, np.repeat(self._tree[parents], 2)])
        self._feature = np.concatenate([self._feature, np.full(n, -1, np.int32)])
        self._low, self._high = (np.concatenate([a, np.full(n, -1, np.int64)]) for a in (self._low, self._high))
        self._missing_left = np.concatenate([self._missing_left, np.zeros(n, np.uint8)])
        self._close(_children(nodes, best, chosen), children)

    # --- the finished trees ---

    def finish(self) -> tuple[WholeTrees, Leaves, NDArray[np.float64]]:
        """The trees, their leaves (a regression's in fixed point), and what each split has improved."""
        structure, position = self._skeleton.finish()
        numbers = np.concatenate([told.numbers for told in self._splits] or [_NO_NODES])
        order = np.argsort(position[numbers])
        feature = np.concatenate([told.feature for told in self._splits] or [np.empty(0, np.int32)])
        low = np.concatenate([told.low for told in self._splits] or [_NO_NODES])
        high = np.concatenate([told.high for told in self._splits] or [_NO_NODES])
        sets = [some for told in self._splits for some in told.sets]
        set_start, all_sets = gather_sets(
            np.cumsum([0, *(len(some) for some in sets)]), np.concatenate([np.empty(0, np.uint8), *sets]), order
        )
        cuts = zip(feature.tolist(), low.tolist(), high.tolist(), strict=True)
        threshold = np.array([self._columns.threshold(*cut) for cut in cuts], np.float64)
        missing = np.concatenate([told.missing_left for told in self._splits] or [np.empty(0, np.uint8)])
        splits = Splits(
            node=position[numbers[order]].astype(np.int32),
            feature=feature[order].astype(np.int32),
            threshold=threshold[order],
            missing_left=missing[order].astype(np.bool_),
            set_start=set_start,
            sets=all_sets,
        )
        gain = np.zeros(structure.n_nodes)
        unit = self._scale if self._kind == ENTROPY else 4.0**self.target_bits
        improved = np.concatenate([told.gain for told in self._splits] or [np.empty(0)])
        gain[position[numbers]] = improved / unit / self._root_weight[self._tree[numbers]]
        return WholeTrees(structure, splits), self._answers(position), gain

    def _answers(self, position: NDArray[np.int64]) -> Leaves:
        numbers = np.concatenate([numbers for numbers, _ in self._leaves])
        parts = [nodes for _, nodes in self._leaves]
        joined = Nodes(*(np.concatenate([getattr(p, name) for p in parts]) for name in Nodes.__dataclass_fields__))
        leaves = joined.take(np.argsort(position[numbers]))
        weight = leaves.weight.astype(np.float64)
        value = leaves.totals / np.repeat(weight, leaves.n_classes)
        if self._kind == TARGETS:
            value = leaves.sums / weight
        return Leaves(weight, leaves.start, leaves.classes.astype(np.int32), value, self._n_outputs)


def _children(nodes: Nodes, best: _Best, chosen: NDArray[np.int64]) -> Nodes:
    """Left and right child of every split node."""
    at = nodes.entries(chosen)
    owner = np.repeat(np.arange(len(chosen)), nodes.n_classes[chosen])
    child = np.concatenate([2 * owner, 2 * owner + 1])
    classes = np.tile(nodes.classes[at], 2)
    totals = np.concatenate([best.left[at], best.total[at] - best.left[at]])
    occurs = np.flatnonzero(totals)
    occurs = occurs[np.argsort(child[occurs], kind="stable")]
    rows, sums = best.left_rows[chosen], best.left_sum[chosen]
    return Nodes(
        np.bincount(child[occurs], minlength=2 * len(chosen)),
        classes[occurs],
        totals[occurs],
        np.column_stack([rows, best.rows[chosen] - rows]).ravel(),
        np.column_stack([sums, best.sums[chosen] - sums]).ravel(),
    )


def _ranges(start: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers from each start on, one range after the other."""
    ends = np.cumsum(length)
    return np.arange(int(length.sum())) + np.repeat(start - ends + length, length)


_NO_NODES = np.empty(0, np.int64)

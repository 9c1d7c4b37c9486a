"""The trees of a hidden training at the leader: which columns are tried where, the best splits, and the leaves.

No messages and no shares here. The leader has opened sums by bin, and knows nothing of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.hidden.shared_rows import CodeSizes, RecordLayout, Words
from woodlot.trees.best_first import best_first
from woodlot.trees.cells import ENTROPY, GINI, TARGETS
from woodlot.trees.coarsening import cells_of_codes, first_code, last_code
from woodlot.trees.cost_complexity import splits_to_prune
from woodlot.trees.forest import Leaves, Structure
from woodlot.trees.kernels.cells import place_all
from woodlot.trees.kernels.shares import BestCut, read_cells, search_bins
from woodlot.trees.kernels.wide import fill_xlogx
from woodlot.trees.rules import XLOGX_SIZE, GrowthRules, entropy_scale
from woodlot.trees.sampling import Bootstrap
from woodlot.trees.skeleton import Skeleton

EPSILON = float(np.finfo(np.float64).eps)
"""By how much a gain may fall short of ``min_impurity_decrease``: as in scikit-learn."""


class LeafCode(Protocol):
    """How the leaves' answers follow from their sums."""

    def leaf_values(self, sums: NDArray[np.int64], weights: NDArray[np.int64]) -> NDArray[np.float64]:
        """Mean targets."""
        ...

    @property
    def weight_unit(self) -> float:
        """What a row of weight 1 weighs in a tree."""
        ...


@dataclass(frozen=True, eq=False)
class OpenedSums:
    """Opened sums, of nodes or of cells.

    Attributes
    ----------
    rows : int64 array
        Different rows that were drawn.
    weights : int64 array, shape (n, classes)
        Weight of each class; of targets, the weight.
    sums : int64 array
        Weighted sums of targets in fixed point; 0 for classes.
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.int64]
    sums: NDArray[np.int64]

    def take(self, which: NDArray[Any]) -> OpenedSums:
        """Some of them."""
        return OpenedSums(self.rows[which], self.weights[which], self.sums[which])


def read_sums(layout: RecordLayout, own: Words, other: Words, sender: str) -> OpenedSums:
    """Open sums of both servers' shares."""
    n = len(own)
    opened = OpenedSums(np.zeros(n, np.int64), np.zeros((n, max(1, layout.n_classes)), np.int64), np.zeros(n, np.int64))
    word, shift = layout.places
    if not read_cells(own, other, word, shift, layout.width, opened.rows, opened.weights, opened.sums):
        raise RemoteProtocolError(f"{sender} sent sums that no rows have")
    return opened


@dataclass(frozen=True, eq=False)
class SharedColumns:
    """All columns by number: their keys, and what is known of their codes."""

    keys: NDArray[np.uint64]
    sizes: CodeSizes
    categorical: NDArray[np.uint8]

    def slots(self, root_keys: NDArray[np.uint64], n_columns: int) -> NDArray[np.int64]:
        """The columns that travel with the rows of each tree: all of them, or the tree's own candidates."""
        if n_columns == len(self.keys):
            return np.tile(np.arange(n_columns), (len(root_keys), 1))
        return self.in_order(root_keys, np.tile(np.arange(len(self.keys)), (len(root_keys), 1)))[:, :n_columns]

    def in_order(self, node_keys: NDArray[np.uint64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Columns of each node in its order of candidates."""
        places = np.empty((len(node_keys), len(self.keys)), np.uint64)
        place_all(node_keys, self.keys, places)
        order = np.argsort(np.take_along_axis(places, columns, axis=1), axis=1)
        return np.take_along_axis(columns, order, axis=1)


@dataclass(frozen=True, eq=False)
class HiddenGrowth:
    """The rules of growth in numbers of this training."""

    rules: GrowthRules
    kind: int
    n_candidates: int
    max_leaf_nodes: int | None
    min_impurity_decrease: float
    ccp_alpha: float
    gain_unit: float
    scale: int
    xlogx: NDArray[np.int64]

    @classmethod
    def of(cls, plan: ForestPlan, sampling: Bootstrap, n_rows: int, n_candidates: int, unit: float) -> HiddenGrowth:
        weight = sampling.tree_weight(n_rows)
        entropy = plan.task == "classes" and plan.entropy
        scale = entropy_scale(sampling, n_rows) if entropy else 1
        xlogx = np.zeros(weight + 1 if entropy and weight <= XLOGX_SIZE else 1, np.int64)
        if len(xlogx) > 1:
            fill_xlogx(xlogx, float(scale))
        return cls(
            rules=plan.rules(n_rows, weight),
            kind=TARGETS if plan.task == "targets" else ENTROPY if entropy else GINI,
            n_candidates=n_candidates,
            max_leaf_nodes=plan.max_leaf_nodes,
            min_impurity_decrease=plan.min_impurity_decrease,
            ccp_alpha=plan.pruning,
            gain_unit=1.0 / (weight * (scale if entropy else unit)),
            scale=scale,
            xlogx=xlogx,
        )


@dataclass(frozen=True, eq=False)
class ForestSplits:
    """All splits of some trees, by node of their structure; ``high`` is -1 where only missing values go right."""

    node: NDArray[np.int64]
    feature: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    missing_left: NDArray[np.uint8]
    sets: list[NDArray[np.uint8]]
    gain: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NodeSides:
    """How the rows of split nodes are divided.

    Attributes
    ----------
    feature, slot : int64 arrays
        The column, and where it travels.
    shift : int64 array
        How many low bits of its codes are dropped.
    goes_left : uint8 array, shape (nodes, cells)
        Which cells go left.
    """

    feature: NDArray[np.int64]
    slot: NDArray[np.int64]
    shift: NDArray[np.int64]
    goes_left: NDArray[np.uint8]

    def take(self, which: NDArray[Any]) -> NodeSides:
        """Some of them."""
        return NodeSides(self.feature[which], self.slot[which], self.shift[which], self.goes_left[which])


class _HiddenLevel:
    """The best split of each open node, as far as its candidates are searched."""

    def __init__(self, n: int, n_classes: int, room: int) -> None:
        self.feature = np.full(n, -1, np.int64)
        self.slot = np.zeros(n, np.int64)
        self.shift = np.zeros(n, np.int64)
        self.gain = np.full(n, np.nan)
        self.closed = np.zeros(n, bool)
        self.best = BestCut(
            score=np.full(n, -np.inf),
            whole=np.zeros(n),
            pair=np.full(n, -1, np.int64),
            low=np.zeros(n, np.int64),
            high=np.zeros(n, np.int64),
            missing_left=np.zeros(n, np.uint8),
            left_rows=np.zeros(n, np.int64),
            left=np.zeros((n, n_classes), np.int64),
            left_sum=np.zeros(n, np.int64),
            goes_left=np.zeros((n, room), np.uint8),
        )


class HiddenTrees:
    """Growing trees at the leader.

    Parameters
    ----------
    growth : HiddenGrowth
        The rules.
    columns : SharedColumns
        All columns.
    root_keys : uint64 array
        Key of each tree.
    slots : int64 array, shape (trees, columns that travel)
        Which columns the trees have.
    roots : OpenedSums
        What each tree has drawn.
    """

    def __init__(
        self,
        growth: HiddenGrowth,
        columns: SharedColumns,
        root_keys: NDArray[np.uint64],
        slots: NDArray[np.int64],
        roots: OpenedSums,
    ) -> None:
        self._growth = growth
        self._columns = columns
        self._slots = slots
        self._skeleton = Skeleton(root_keys)
        self._tree = np.arange(len(root_keys))  # of each open node
        self._totals = [roots]  # of every node made, by its number
        self._gains: list[NDArray[np.float64]] = []
        self._made: list[ForestSplits] = []
        self._close(roots)

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
        return self._skeleton.n_trees - len(np.unique(self._tree))

    def _close(self, nodes: OpenedSums) -> None:
        """Decide which of the nodes just made are open."""
        rules = self._growth.rules
        weight = nodes.weights.sum(axis=1)
        is_open = (nodes.rows >= max(rules.min_samples_split, 2 * rules.min_samples_leaf)) & (
            weight >= 2 * rules.min_weight if rules.min_weight > 1 else True
        )
        is_open &= self._skeleton.depth < rules.max_depth
        if self._growth.kind != TARGETS:
            is_open &= (nodes.weights > 0).sum(axis=1) > 1
        self.opened = is_open
        """Which of the nodes just made are open."""
        kept = self._skeleton.keep_open(is_open)
        self._tree = self._tree[kept]
        self._nodes = nodes.take(kept)
        room = int(self._columns.sizes.n_codes.max(initial=0)) + 1
        self._level = _HiddenLevel(len(kept), nodes.weights.shape[1], room)
        self._tried = 0

    # --- searching ---

    def ask(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """The next candidates of the nodes that have no split yet: the nodes, and slots of columns for each, in order.

        Where no candidate can split a node the search goes on in the node's order, as many again as were tried before.
        None where all that can be has been tried.
        """
        n_all = self._slots.shape[1]
        first, wanted = self._tried, self._growth.n_candidates
        if first >= (wanted if self._growth.rules.whole_tree else n_all):
            return None
        nodes = np.flatnonzero((self._level.feature < 0) & ~self._level.closed)
        if len(nodes) == 0:
            return None
        self._tried = min(n_all, first + max(wanted, first))
        columns = self._columns.in_order(self._skeleton.key[nodes], self._slots[self._tree[nodes]])
        return nodes, self._slots_of(nodes, columns[:, first : self._tried])

    def _slots_of(self, nodes: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """In which slot each column of some nodes travels."""
        if self._slots.shape[1] == len(self._columns.keys):
            return columns
        own = self._slots[self._tree[nodes]]
        place = np.argsort(own, axis=1)
        ranked = np.take_along_axis(own, place, axis=1)
        at = np.array([np.searchsorted(row, wanted) for row, wanted in zip(ranked, columns, strict=True)])
        return np.take_along_axis(place, at, axis=1)

    def features(self, node: NDArray[np.int64], slot: NDArray[np.int64]) -> NDArray[np.int64]:
        """The columns in some slots at some open nodes."""
        return self._slots[self._tree[node], slot]

    def shifts(self, node: NDArray[np.int64], slot: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many low bits are dropped from the codes in some slots at some open nodes: by the rows drawn there."""
        sizes = self._columns.sizes.take(self.features(node, slot))
        return sizes.shifts(self._nodes.rows[node], self._growth.rules.min_cell)

    def take(
        self,
        nodes: NDArray[np.int64],
        slots: NDArray[np.int64],
        cells: OpenedSums,
        squares: NDArray[np.uint64],
    ) -> None:
        """Search the sums of some nodes' candidates for their best splits.

        Parameters
        ----------
        nodes, slots
            As `ask` has given them, or some of them.
        cells : OpenedSums
            The sums of every cell of every pair.
        squares : uint64 array
            OpenedSums of squared targets of the nodes, modulo 2**64; empty for classes.
        """
        level, growth, n = self._level, self._growth, len(nodes)
        totals = self._nodes.take(nodes)
        found = _HiddenLevel(n, totals.weights.shape[1], level.best.goes_left.shape[1]).best
        node, slot = np.repeat(nodes, slots.shape[1]), slots.ravel()
        column, shift = self.features(node, slot), self.shifts(node, slot)
        sizes = self._columns.sizes.take(column)
        n_cells = sizes.cells(shift)
        agree = search_bins(
            cells.rows, cells.weights, cells.sums, np.cumsum(n_cells) - n_cells, np.arange(n + 1) * slots.shape[1],
            sizes.values(shift), sizes.has_missing, self._columns.categorical[column],
            totals.rows, totals.weights, totals.sums, growth.rules.min_samples_leaf, growth.rules.min_weight,
            growth.kind, self._tried > growth.n_candidates, growth.xlogx, float(growth.scale),
            found.goes_left.shape[1], found,
        )  # fmt: skip
        if not agree:
            raise RemoteProtocolError("the sums of a node's candidates are not of the same rows")
        if len(squares):
            # all targets of the node are equal if and only if weight * squares == sum**2; both modulo 2**64
            sums, weight = totals.sums.astype(np.uint64), totals.weights[:, 0].astype(np.uint64)
            level.closed[nodes] = weight * squares == sums * sums
        splits = (found.pair >= 0) & ~level.closed[nodes]
        for mine, its in zip(level.best, found, strict=True):
            mine[nodes] = its
        level.feature[nodes] = np.where(splits, column[found.pair], -1)
        level.slot[nodes] = slot[found.pair]
        level.shift[nodes] = shift[found.pair]
        level.gain[nodes] = np.where(splits, (found.score - found.whole) * growth.gain_unit, np.nan)

    # --- splitting ---

    def split(self) -> NDArray[np.bool_]:
        """Split the open nodes that have a split; returns which of them have an open child."""
        level, skeleton = self._level, self._skeleton
        is_split = (level.feature >= 0) & ~(level.gain + EPSILON < self._growth.min_impurity_decrease)
        if self._growth.max_leaf_nodes is not None:
            known = self._known_gains()
            known[skeleton.frontier] = np.where(is_split, level.gain, np.nan)
            is_split &= best_first(skeleton.n_trees, skeleton.left, known, self._growth.max_leaf_nodes)[
                skeleton.frontier
            ]
        chosen = np.flatnonzero(is_split)
        best = BestCut(*(array[chosen] for array in level.best))
        self._record(skeleton.frontier[chosen], level, chosen, best)
        whole = self._nodes.take(chosen)
        left = OpenedSums(best.left_rows, best.left, best.left_sum)
        children = OpenedSums(
            *(
                np.stack([getattr(left, name), getattr(whole, name) - getattr(left, name)], axis=1).reshape(
                    2 * len(chosen), *getattr(whole, name).shape[1:]
                )
                for name in ("rows", "weights", "sums")
            )
        )
        sides = NodeSides(
            level.feature[chosen], level.slot[chosen], level.shift[chosen], self._goes_left(level, chosen, best)
        )
        skeleton.split(is_split)
        self._tree = np.repeat(self._tree[chosen], 2)
        self._totals.append(children)
        self._close(children)
        opened = self.opened.reshape(-1, 2)
        goes_on = opened[:, 0] | opened[:, 1]
        self.sides = sides.take(goes_on)
        """Of the nodes whose rows go on."""
        self.opened_sides = opened[goes_on].ravel()
        """Which of their children are open."""
        mask = np.zeros(len(is_split), bool)
        mask[chosen[goes_on]] = True
        return mask

    def _goes_left(self, level: _HiddenLevel, chosen: NDArray[np.int64], best: BestCut) -> NDArray[np.uint8]:
        """Which cells go left at each split; that of missing values is the one after the last of values."""
        features = level.feature[chosen]
        cells = np.arange(best.goes_left.shape[1])[None, :]
        n_values = self._columns.sizes.take(features).values(level.shift[chosen])[:, None]
        by_cut = np.where(cells == n_values, best.missing_left[:, None], cells <= best.low[:, None])
        by_set = self._columns.categorical[features][:, None] == 1
        table: NDArray[np.uint8] = np.where(by_set, best.goes_left, by_cut).astype(np.uint8)
        return table

    def _record(self, number: NDArray[np.int64], level: _HiddenLevel, chosen: NDArray[np.int64], best: BestCut) -> None:
        feature, shift = level.feature[chosen], level.shift[chosen]
        by_set = self._columns.categorical[feature] == 1
        n_codes = self._columns.sizes.n_codes[feature]
        sets = [
            np.packbits(best.goes_left[k, cells_of_codes(int(n_codes[k]), int(shift[k]))], bitorder="little")
            if by_set[k]
            else np.empty(0, np.uint8)
            for k in range(len(chosen))
        ]
        self._gains.append(level.gain[chosen])
        self._made.append(
            ForestSplits(
                number,
                feature,
                np.where(by_set, 0, last_code(best.low, n_codes, shift)),
                np.where(by_set, -1, first_code(best.high, shift)),
                np.where(by_set, 0, best.missing_left).astype(np.uint8),
                sets,
                level.gain[chosen],
            )
        )

    def _known_gains(self) -> NDArray[np.float64]:
        """Gain of every node made so far, NaN where it is not split."""
        gains = np.full(self._skeleton.n_nodes, np.nan)
        gains[self._skeleton.split_nodes] = np.concatenate([np.empty(0), *self._gains])
        return gains

    # --- the finished trees ---

    def finish(self, code: LeafCode) -> tuple[Structure, Leaves, ForestSplits]:
        """Prune as the plan says; the structure, its leaves and its splits."""
        skeleton, growth = self._skeleton, self._growth
        pruned = splits_to_prune(skeleton, self._known_gains(), growth.max_leaf_nodes, growth.ccp_alpha)
        structure, position = skeleton.finish(pruned)
        return structure, self._leaves(structure, position, code), self._splits_of(structure, position)

    def _leaves(self, structure: Structure, position: NDArray[np.int64], code: LeafCode) -> Leaves:
        standing = np.flatnonzero(position >= 0)
        standing = standing[structure.right[position[standing]] < 0]
        number = standing[np.argsort(position[standing])]
        weights, sums = (np.concatenate([getattr(t, n) for t in self._totals])[number] for n in ("weights", "sums"))
        total = weights.sum(axis=1)
        output: NDArray[Any]
        if self._growth.kind == TARGETS:
            start, output = np.arange(len(number) + 1), np.zeros(len(number), np.int64)
            value = code.leaf_values(sums, total)
        else:
            leaf, output = np.nonzero(weights)
            start = np.searchsorted(leaf, np.arange(len(number) + 1))
            value = weights[leaf, output].astype(np.float64) / total[leaf].astype(np.float64)
        return Leaves(
            weight=total.astype(np.float64) / code.weight_unit,
            start=start.astype(np.int64),
            output=output.astype(np.int32),
            value=value,
            n_outputs=weights.shape[1],
        )

    def _splits_of(self, structure: Structure, position: NDArray[np.int64]) -> ForestSplits:
        joined = _joined(self._made)
        at = position[joined.node]
        standing = np.flatnonzero((at >= 0) & (structure.right[at] >= 0))
        order = standing[np.argsort(at[standing])]
        return ForestSplits(
            at[order],
            joined.feature[order],
            joined.low[order],
            joined.high[order],
            joined.missing_left[order],
            [joined.sets[k] for k in order.tolist()],
            joined.gain[order],
        )


def _joined(parts: Sequence[ForestSplits]) -> ForestSplits:
    """Splits of all levels, in the order they were made."""
    no = np.empty(0, np.int64)
    none = ForestSplits(no, no, no, no, np.empty(0, np.uint8), [], np.empty(0))
    parts = [none, *parts]
    names = ("node", "feature", "low", "high", "missing_left", "gain")
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return ForestSplits(sets=[some for part in parts for some in part.sets], **joined)


def join_splits(parts: Sequence[ForestSplits], shifts: Sequence[int]) -> ForestSplits:
    """Splits of trees that grew in several batches, in which nodes are counted from these numbers on."""
    return _joined(
        [
            ForestSplits(p.node + shift, p.feature, p.low, p.high, p.missing_left, p.sets, p.gain)
            for p, shift in zip(parts, shifts, strict=True)
        ]
    )

"""Taking rows out of a grown forest: afterwards it is, bit for bit, the one that grows without them.

`ForestMemory` keeps where the rows of every tree ended, and for large nodes how far their split was ahead of every
other partition (``kernels.forgetting``). To forget rows::

    touch      follow each row down the trees that drew it; these nodes lose it, all others are as before
    judge      a large node whose split is still ahead by the bound of ``kernels.bounds`` stands
    defend     of two classes, a node whose split is seen to beat all others in its candidates' histograms stands
    search     all other touched nodes are searched again, as in training
    compare    where the same rows go left as before, all below stands; the question may be another
    regrow     where another partition wins, the branch is grown again from its rows

All columns are in one hand here: the forest does not depend on who holds which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.branch_growing import (
    EPSILON,
    Branches,
    BranchGrower,
    Ground,
    best_splits,
    gain_unit_of,
    grow_branches,
)
from woodlot.trees.forest import Leaves, Splits, Structure, gather_sets
from woodlot.trees.kernels import forget_judging as judging
from woodlot.trees.kernels import forgetting as kernels
from woodlot.trees.kernels.forget_defending import defend
from woodlot.trees.kernels.forget_measuring import LOWEST, measure
from woodlot.trees.kernels.samples import sort_rows
from woodlot.trees.kernels.search import Columns
from woodlot.trees.kernels.sorting import COUNT_SIZE
from woodlot.trees.leaf_edits import Held, LeafEdits, held_by
from woodlot.trees.rules import entropy_scale
from woodlot.trees.sampling import Bootstrap, derive_seed, draw_rows, tree_keys

LARGE = 4096
"""Nodes of at least this many rows keep a record of their split. Smaller ones are touched so rarely that most grow
again before a record has paid."""
MEASURED_AT = 2
"""A record is made when a node is looked into for this time: it costs several looks."""
MOST_AT_ONCE = 16
"""Where a node loses more rows than this in one call its record is given up: following each row costs more."""
RIVAL_SUMS = 256
"""Of a large node the next best partitions are kept with their class weights: so many numbers, ..."""
GROUP_SUMS = 512
"""The other cuts are in groups, each with the class weights of its first and last one: so many numbers of each."""
FEWEST_RIVALS = 4
"""... and at least this many partitions."""
FAR = 24.0
"""Columns whose cuts all score less than the split's by this weight are not sorted for a record."""
SEARCHED_SHARE = 0.7
"""Where more than this share of the work of growing would be searched again, growing again is cheaper."""


class TooMuchError(Exception):
    """The forest must be grown again: something changes that every node depends on, or most nodes do."""


@dataclass(frozen=True, eq=False)
class RememberedTrees:
    """A forest with all its questions in one hand; gains are impurity decreases."""

    structure: Structure
    splits: Splits
    feature: NDArray[np.int32]
    gain: NDArray[np.float64]
    leaves: Leaves


@dataclass
class Forgotten:
    """What forgetting rows has done: nodes that were searched, and by tree those removed and grown in their place."""

    searched: int
    stood: int
    removed: NDArray[np.int64]
    regrown: NDArray[np.int64]

    @classmethod
    def nothing(cls, n_trees: int) -> Forgotten:
        """No row was in the forest."""
        return cls(0, 0, np.zeros(n_trees, np.int64), np.zeros(n_trees, np.int64))


class ForestMemory:
    """A forest of which rows can be forgotten.

    Parameters
    ----------
    ground : Ground
        What it has grown on; rows in the order of the training.
    forest : RememberedTrees
        The forest.
    bootstrap : Bootstrap
        How its rows were drawn.
    weight_unit : float
        What a row of weight 1 weighs in a tree.
    """

    def __init__(self, ground: Ground, forest: RememberedTrees, bootstrap: Bootstrap, weight_unit: float) -> None:
        self.ground = ground
        self._weight_unit = weight_unit
        self.present = np.ones(len(ground.labels), np.bool_)
        self._criterion = kernels.ERROR if ground.n_classes == 0 else int(ground.rules.entropy)
        self._n_sums = ground.n_classes or 2
        self._scale = float(entropy_scale(bootstrap, len(ground.labels))) if ground.rules.entropy else 1.0
        n_trees, n_nodes = forest.structure.n_trees, forest.structure.n_nodes
        self._root_keys = tree_keys(ground.order_seed, range(n_trees))
        self._row_weights = bootstrap.weights
        self._draws: Any = None if bootstrap.seed is None else bootstrap.by_row
        if bootstrap.seed is not None:
            seeds = [derive_seed(bootstrap.seed, "bootstrap", tree) for tree in range(n_trees)]
            self._draw_keys = np.array(seeds, np.uint64)
        self._offset = forest.structure.offset.copy()
        t = ground.table
        self._table = kernels.CodeTable(t.fine, t.n_codes, t.categorical, t.lowest, t.highest, t.first_value)
        self._columns = Columns(*(getattr(t, name) for name in Columns._fields))
        self._sorted = bool(t.categorical.any())
        self.rows, self.weights, bounds = draw_rows(bootstrap, range(n_trees), ground.labels, ground.n_classes, 1)
        # a tree that draws no row has all of them
        self._all_rows = np.array([self._drew_none(tree, bounds) for tree in range(n_trees)], bool)
        node = np.arange(n_nodes, dtype=np.int32)
        right, splits = forest.structure.right, forest.splits
        self._trees = kernels.Trees(
            jump=np.where(right >= 0, right - node, 0).astype(np.int32),
            start=np.zeros(n_nodes, np.int64),
            end=np.zeros(n_nodes, np.int64),
            count=np.zeros(n_nodes, np.int32),
            feature=np.full(n_nodes, -1, np.int32),
            threshold=np.full(n_nodes, np.nan),
            missing_left=np.zeros(n_nodes, np.uint8),
            gain=np.zeros(n_nodes),
            slot=np.full(n_nodes, -1, np.int32),
            set_at=np.full(n_nodes, -1, np.int64),
        )
        self._ask(splits.node, splits)
        roots = self._offset[:-1]
        self._trees.start[roots], self._trees.end[roots] = bounds[:-1], bounds[1:]
        self.leaves = forest.leaves
        largest = int(np.diff(bounds).max(initial=0)) + 1
        self._largest = largest
        self._work = int(
            kernels.replay(
                self._offset, self._trees, self._sets, self._table, self.rows, self.weights, ground.labels,
                self._n_sums, self._criterion, self._scale, np.empty(largest, np.uint32),
                np.empty(largest, self.weights.dtype),
            )
        )  # fmt: skip
        self._new_sets: list[NDArray[np.uint8]] = []
        self._slots = self._make_slots(64)
        self._n_slots = 0
        self._free: list[int] = []
        self._mark = np.zeros(len(ground.labels), np.uint8)
        self._room = (
            np.empty(largest, np.uint64),
            np.empty(largest, np.uint64),
            np.zeros(COUNT_SIZE, np.int32),
            np.empty(largest),
        )
        unit = gain_unit_of(bootstrap, len(ground.labels), ground.rules)
        if not np.array_equal(self._trees.gain * unit, forest.gain):
            raise TooMuchError("the forest is not of these rows")

    _sets: NDArray[np.uint8] = np.empty(0, np.uint8)

    def _drew_none(self, tree: int, bounds: NDArray[np.int64]) -> bool:
        """Whether a tree draws no row by itself: it then has all rows, each once."""
        if self._draws is None or (self.weights[bounds[tree] : bounds[tree + 1]] != 1).any():
            return False
        drawn = np.empty((1, len(self.present)), np.uint32)
        kernels.draw_matrix(self._draw_keys[tree : tree + 1], *_of(self._draws), drawn)
        return not drawn.any()

    def _make_slots(self, n: int) -> kernels.Slots:
        sums, rivals = self._n_sums, max(FEWEST_RIVALS, RIVAL_SUMS // self._n_sums)
        tried = min(self.ground.n_candidates, len(self.ground.feature_keys))
        n_parts = 2 * tried if self.ground.table.has_missing.any() else tried
        groups = 0 if self._criterion == kernels.ERROR else n_parts * max(1, GROUP_SUMS // (n_parts * sums))
        return kernels.Slots(
            totals=np.zeros((n, sums), np.int64), left=np.zeros((n, sums), np.int64), upper=np.zeros(n),
            n_rivals=np.zeros(n, np.int32), rival=np.zeros((n, rivals, 4), np.int32),
            rival_left=np.zeros((n, rivals, sums), np.int64), n_groups=np.zeros(n, np.int32),
            group=np.zeros((n, groups, 4), np.int32), group_upper=np.zeros((n, groups)),
            group_left=np.zeros((n, groups, 2, sums), np.int64), low=np.zeros(n, np.int64), high=np.zeros(n, np.int64),
            at_low=np.zeros(n, np.int32), at_high=np.zeros(n, np.int32), missing=np.zeros(n, np.int32),
            least=np.zeros(n, np.int64), most=np.zeros(n, np.int64),
        )  # fmt: skip

    def _ask(self, nodes: NDArray[Any], splits: Splits) -> None:
        """Put questions at nodes."""
        t = self._trees
        t.feature[nodes], t.threshold[nodes] = splits.feature, splits.threshold
        t.missing_left[nodes] = splits.missing_left
        t.set_at[nodes] = np.where(splits.categorical, splits.set_start[:-1] + len(self._sets), -1)
        self._sets = np.concatenate([self._sets, splits.sets])

    # --- forgetting ---

    def forget(self, gone: NDArray[np.int64], bootstrap: Bootstrap) -> Forgotten:
        """Take rows out of the forest; where `TooMuchError` is raised the memory is of no use any more.

        Parameters
        ----------
        gone : int64 array
            Row numbers of the ground, each once, not forgotten before.
        bootstrap : Bootstrap
            How rows are drawn without them.
        """
        drawn = self._drawn(gone)
        t, n_nodes = self._trees, len(self._trees.jump)
        lost = np.zeros(n_nodes, np.int32)
        if len(gone) > MOST_AT_ONCE:  # see what is ahead before anything is changed
            looked_into = kernels.look_ahead(gone, drawn, self._offset, t, self._sets, self._table, MOST_AT_ONCE, lost)
            if looked_into > SEARCHED_SHARE * self._work:
                raise TooMuchError("most nodes must be searched again")
            self._free += t.slot[(lost > MOST_AT_ONCE) & (t.slot >= 0)].tolist()
            t.slot[(lost > MOST_AT_ONCE) & (t.slot >= 0)] = -1
            lost[:] = 0
        self.present[gone] = False
        touched, leaf = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.int64)
        depth, tree = np.empty(n_nodes, np.int32), np.empty(n_nodes, np.int32)
        key = np.empty(n_nodes, np.uint64)
        n = kernels.touch(
            gone, drawn, self._offset, self._root_keys, t, self._sets, self._table, self.rows, self.weights,
            self.ground.labels, self._criterion, self._scale, self._slots, lost, touched, key, depth, leaf, tree,
        )  # fmt: skip
        if n < 0:
            raise TooMuchError("a row is not where it must be")
        if (t.count[self._offset[:-1]] == 0).any():
            raise TooMuchError("a tree has lost all its rows")
        touched, key, depth, leaf, tree = touched[:n], key[:n], depth[:n], leaf[:n], tree[:n]
        status = np.empty(n, np.uint8)
        rules, ground = self.ground.rules, self.ground
        fewest = max(rules.min_samples_split, 2 * rules.min_samples_leaf)
        judging.judge(
            touched, t, self._sets, self._table, self.rows, self.weights, self._slots, self._criterion, self._scale,
            fewest, rules.min_samples_leaf, rules.min_weight, status,
        )  # fmt: skip
        stood = int((status == judging.STANDS).sum())
        defended = self._defend(touched, key, tree, fewest, status)
        is_leaf = status == judging.LEAF
        # a leaf that no feature could split, or whose best split lost by rounding, may be split without the row
        entries = self.leaves.start[leaf + 1] - self.leaves.start[leaf]
        again = is_leaf & (t.count[touched] >= fewest) & (depth < rules.max_depth)
        if ground.n_classes:
            again &= entries > 1
        looked = np.flatnonzero((status == judging.SEARCH) | again)
        looked = looked[np.argsort(touched[looked])]
        is_changed = self._search(touched[looked], key[looked], tree[looked], bootstrap)
        changed = looked[is_changed]
        changed = changed[_outermost(touched[changed], t.jump)]
        leaves = np.flatnonzero(is_leaf)
        removed, regrown = self._renew(touched, key, depth, leaf, tree, leaves, changed, bootstrap)
        return Forgotten(defended + len(looked), stood, removed, regrown)

    def _defend(
        self,
        touched: NDArray[np.int64],
        key: NDArray[np.uint64],
        tree: NDArray[np.int32],
        fewest: int,
        status: NDArray[np.uint8],
    ) -> int:
        """Have splits of two classes stand that beat all others, and say so in ``status``; returns how many."""
        t, ground, rules = self._trees, self.ground, self.ground.rules
        open_before = np.flatnonzero(status == judging.SEARCH)
        if ground.n_classes != 2 or len(open_before) == 0:
            return 0
        select_key = self._root_keys[tree] if rules.whole_tree else key
        defend(
            touched, select_key, t, self._table, self._columns, ground.feature_keys, ground.n_candidates,
            self.rows, self.weights, ground.labels, self._criterion, self._scale, fewest, rules.min_samples_leaf,
            rules.min_weight, self._largest, status,
        )  # fmt: skip
        stands = open_before[status[open_before] == judging.STANDS]
        nodes, select_key = touched[stands], select_key[stands]
        of_record = self._due(nodes)
        if len(of_record):
            nodes = nodes[of_record]
            rows, weights, bounds = self._gather(nodes)
            places = bounds[:-1], bounds[:-1] + t.count[nodes + 1], bounds[1:]
            self._measure(nodes, select_key[of_record], rows, weights, places)
        return len(stands)

    def _due(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of nodes that were looked into, those that get a record; the others give theirs up."""
        slot = self._trees.slot
        is_large = self._trees.count[nodes] >= LARGE
        self._free += slot[nodes[~is_large & (slot[nodes] >= 0)]].tolist()
        slot[nodes[~is_large]] = -1
        # a node without a record counts how often it was looked into: -1 never, -2 once, ...
        slot[nodes[is_large & (slot[nodes] < 0)]] -= 1
        return np.flatnonzero(is_large & ((slot[nodes] >= 0) | (slot[nodes] < -MEASURED_AT)))

    def _drawn(self, gone: NDArray[np.int64]) -> NDArray[np.uint32]:
        """How often each tree has drawn each of some rows."""
        drawn = np.ones((len(self._root_keys), len(gone)), np.uint32)
        if self._draws is None:
            if self._row_weights is not None:
                drawn *= self._row_weights[gone].astype(np.uint32)
            return drawn
        kernels.draw_matrix(self._draw_keys, *_of(self._draws, gone), drawn)
        if self._all_rows.any():
            drawn[self._all_rows] = np.diff(self._draws.first)[self._draws.level[gone]] > 0
        return drawn

    def _gather(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[Any], NDArray[np.int64]]:
        total = int(self._trees.count[nodes].sum())
        rows, weights = np.empty(total, np.uint32), np.empty(total, self.weights.dtype)
        bounds = np.empty(len(nodes) + 1, np.int64)
        kernels.gather(nodes, self._trees, self.rows, self.weights, bounds, rows, weights)
        return rows, weights, bounds

    def _search(
        self, nodes: NDArray[np.int64], keys: NDArray[np.uint64], trees: NDArray[np.int32], bootstrap: Bootstrap
    ) -> NDArray[np.bool_]:
        """Search nodes again; where the partition is another, says so, and elsewhere notes the new question."""
        changed = np.ones(len(nodes), np.bool_)
        if len(nodes) == 0:
            return changed
        t, ground = self._trees, self.ground
        rows, weights, bounds = self._gather(nodes)
        if self._sorted:  # ties between classes are decided by the order of rows
            sort_rows(rows, weights, bounds[:-1], bounds[1:], len(ground.labels))
        grower = BranchGrower(
            ground, bootstrap, rows, weights, bounds, keys, self._root_keys[trees], np.zeros(len(keys), np.int32)
        )
        opened = np.flatnonzero(grower.is_open)
        was_leaf = t.jump[nodes] == 0
        changed[np.setdiff1d(np.flatnonzero(was_leaf), opened)] = False
        if len(opened) == 0:
            return changed
        won, gain = best_splits(ground, grower, bootstrap, self._n_left)
        changed[opened[~won & was_leaf[opened]]] = False
        compared = opened[won]
        if len(compared) == 0:
            return changed
        ordered = rows.copy()
        middle = grower.middle
        flags = grower.apply(won)
        sizes = (grower.end - grower.start)[won]
        first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        within = _ranges(grower.start[won], sizes)
        same = np.zeros(len(compared), np.uint8)
        inner = np.flatnonzero(~was_leaf[compared])
        if len(inner) == len(compared):
            kernels.same_partitions(
                nodes[compared], t, self.rows, self.weights, ordered[within], flags, first, self._mark, same
            )
        else:
            for k in inner.tolist():
                part = slice(int(first[k]), int(first[k + 1]))
                kernels.same_partitions(
                    nodes[compared[k : k + 1]], t, self.rows, self.weights, ordered[within[part]], flags[part],
                    np.array([0, part.stop - part.start], np.int64), self._mark, same[k : k + 1],
                )  # fmt: skip
        stays = np.flatnonzero(same)
        changed[compared[stays]] = False
        asked = grower.last_won()
        set_start = np.concatenate([[0], np.cumsum(asked.set_length)]).astype(np.int64)
        starts, sets = gather_sets(set_start, asked.sets, stays)
        kept = nodes[compared[stays]]
        question = Splits(
            kept.astype(np.int32), asked.feature[stays], asked.threshold[stays], asked.missing_left[stays], starts, sets
        )
        self._ask(kept, question)
        t.gain[kept] = gain[won][stays]
        self._record(grower, np.flatnonzero(won)[stays], kept, middle)
        return changed

    def _record(
        self, grower: BranchGrower, opened: NDArray[np.int64], nodes: NDArray[np.int64], middle: NDArray[np.int64]
    ) -> None:
        """Measure how far the splits of large nodes are ahead."""
        large = self._due(nodes)
        if len(large) == 0:
            return
        opened, nodes = opened[large], nodes[large]
        select = grower.skeleton.root_key if self.ground.rules.whole_tree else grower.skeleton.key
        bounds = grower.start[opened], middle[opened], grower.end[opened]
        self._measure(nodes, select[opened], grower.rows, grower.weights, bounds)

    def _give_slots(self, nodes: NDArray[np.int64]) -> None:
        """Have a record for each of some nodes."""
        slot = self._trees.slot
        new = nodes[slot[nodes] < 0]
        n_free = min(len(self._free), len(new))
        if n_free:
            slot[new[:n_free]] = self._free[-n_free:]
            del self._free[-n_free:]
            new = new[n_free:]
        while self._n_slots + len(new) > len(self._slots.upper):
            twice = self._make_slots(2 * len(self._slots.upper))
            for old, longer in zip(self._slots, twice, strict=True):
                longer[: len(old)] = old
            self._slots = twice
        slot[new] = self._n_slots + np.arange(len(new))
        self._n_slots += len(new)

    def _measure(
        self,
        nodes: NDArray[np.int64],
        select_key: NDArray[np.uint64],
        rows: NDArray[np.uint32],
        weights: NDArray[Any],
        bounds: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    ) -> None:
        """Make records of nodes that have slots; rows from the first to the last bound, the right side's from the
        middle one.
        """
        t, ground, rules = self._trees, self.ground, self.ground.rules
        self._give_slots(nodes)
        measure(
            self._table, self._columns, ground.feature_keys, ground.n_candidates, rows, weights,
            ground.labels, rules.min_samples_leaf, rules.min_weight, self._criterion, self._scale, *bounds, select_key,
            t.feature[nodes], t.slot[nodes], self._slots, *self._room, FAR * max(self._scale, 1.0),
        )  # fmt: skip
        # where all partitions are kept nothing else scores anything: a number, for infinite ones have no rounding error
        np.maximum(self._slots.upper, LOWEST, out=self._slots.upper)
        judging.find_all_edges(nodes, t, self._table, self.rows, self.weights, self._slots)

    # --- what is new in the trees ---

    def _renew(
        self,
        touched: NDArray[np.int64],
        key: NDArray[np.uint64],
        depth: NDArray[np.int32],
        leaf: NDArray[np.int64],
        tree: NDArray[np.int32],
        leaves: NDArray[np.int64],
        changed: NDArray[np.int64],
        bootstrap: Bootstrap,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Grow changed branches again, and put new leaves and branches into the forest."""
        n_trees = len(self._root_keys)
        removed, regrown = np.zeros(n_trees, np.int64), np.zeros(n_trees, np.int64)
        low = touched[changed]
        high = _branch_ends(low, self._trees.jump)
        # leaves that are in no changed branch lose their row, and that is all
        inside = np.searchsorted(low, touched[leaves], side="right") - 1
        if len(low):
            leaves = leaves[(inside < 0) | (touched[leaves] >= high[np.maximum(inside, 0)])]
        leaves = leaves[np.argsort(leaf[leaves])]
        rows, weights, bounds = self._gather(touched[leaves])
        held = held_by(self.ground, rows, weights, bounds[:-1], bounds[1:])
        grown = self._regrow(low, key[changed], depth[changed], tree[changed], bootstrap) if len(changed) else None
        self._splice(low, high, grown, tree[changed], leaf[changed], leaf[leaves], held, removed, regrown)
        return removed, regrown

    def _regrow(
        self,
        nodes: NDArray[np.int64],
        keys: NDArray[np.uint64],
        depth: NDArray[np.int32],
        tree: NDArray[np.int32],
        bootstrap: Bootstrap,
    ) -> Branches:
        """Grow branches again from the rows that are left of them."""
        rows, weights, bounds = self._gather(nodes)
        sort_rows(rows, weights, bounds[:-1], bounds[1:], len(self.ground.labels))
        grower = BranchGrower(self.ground, bootstrap, rows, weights, bounds, keys, self._root_keys[tree], depth)
        return grow_branches(self.ground, grower, bootstrap, self._n_left)

    @property
    def _n_left(self) -> int:
        """Rows that are not forgotten."""
        return int(self.present.sum())

    def _splice(
        self,
        low: NDArray[np.int64],
        high: NDArray[np.int64],
        grown: Branches | None,
        tree: NDArray[np.int32],
        first_leaf: NDArray[np.int64],
        leaf: NDArray[np.int64],
        totals: Held,
        removed: NDArray[np.int64],
        regrown: NDArray[np.int64],
    ) -> None:
        """Put grown branches in the place of former ones, and what leaves hold into the leaves."""
        t = self._trees
        edits = LeafEdits(self.leaves)
        edits.add(leaf, leaf + 1, np.ones(len(leaf), np.int64), totals)
        nodes: list[tuple[int, int, kernels.Trees]] = []
        delta = np.zeros(len(low), np.int64)
        for k, part in enumerate([] if grown is None else [grown] * len(low)):
            a, b = int(part.structure.offset[k]), int(part.structure.offset[k + 1])
            base = int(t.start[low[k]])
            begin = int(part.start[a])
            size = int(part.end[a]) - begin
            # the rows stand where the branch had them; what is left over at the end is gone
            self.rows[base : base + size] = part.rows[begin : begin + size]
            self.weights[base : base + size] = part.weights[begin : begin + size]
            self.weights[base + size : int(t.end[low[k]])] = 0
            delta[k] = (b - a) - (high[k] - low[k])
            nodes.append((int(low[k]), int(high[k]), self._branch(part, a, b, base - begin)))
            of_leaf = np.flatnonzero(part.structure.right[a:b] < 0) + a
            number = int(first_leaf[k])
            edits.add(
                np.array([number]),
                np.array([number + (int(high[k] - low[k]) + 1) // 2]),
                np.array([len(of_leaf)]),
                held_by(self.ground, part.rows, part.weights, part.start[of_leaf], part.end[of_leaf]),
            )
            removed[tree[k]] += high[k] - low[k]
            regrown[tree[k]] += b - a
        self.leaves = edits.done(self._weight_unit)
        if not nodes:
            return
        for a, b in zip(low.tolist(), high.tolist(), strict=True):
            self._free += t.slot[a:b][t.slot[a:b] >= 0].tolist()
        jump = t.jump.copy()
        for k in range(len(low)):  # ancestors whose right child stands behind the branch
            if delta[k]:
                _shift_jumps(int(self._offset[tree[k]]), int(low[k]), int(delta[k]), t.jump, jump)
        self._trees = kernels.Trees(*(_replaced(array, nodes, i) for i, array in enumerate((jump, *t[1:]))))
        self._sets = np.concatenate([self._sets, *self._new_sets])
        self._new_sets.clear()
        grow = np.zeros(len(self._offset), np.int64)
        np.add.at(grow, tree + 1, delta)
        self._offset = self._offset + np.cumsum(grow)

    def _branch(self, part: Branches, a: int, b: int, shift: int) -> kernels.Trees:
        """The nodes of a branch."""
        n = b - a
        right = part.structure.right[a:b]
        own = slice(*np.searchsorted(part.splits.node, [a, b]).tolist())
        s = part.splits
        branch = kernels.Trees(
            jump=np.where(right >= 0, right - np.arange(a, b), 0).astype(np.int32),
            start=part.start[a:b] + shift,
            end=part.end[a:b] + shift,
            count=(part.end[a:b] - part.start[a:b]).astype(np.int32),
            feature=np.full(n, -1, np.int32),
            threshold=np.full(n, np.nan),
            missing_left=np.zeros(n, np.uint8),
            gain=part.gain[a:b],
            slot=np.full(n, -1, np.int32),
            set_at=np.full(n, -1, np.int64),
        )
        at = s.node[own] - a
        branch.feature[at], branch.threshold[at] = s.feature[own], s.threshold[own]
        branch.missing_left[at] = s.missing_left[own]
        first = s.set_start[own.start : own.stop + 1]
        waiting = len(self._sets) + sum(map(len, self._new_sets))
        branch.set_at[at] = np.where(np.diff(first) > 0, first[:-1] - first[0] + waiting, -1)
        if first[-1] > first[0]:
            self._new_sets.append(s.sets[first[0] : first[-1]])
        return branch

    # --- the forest ---

    def grown(self, bootstrap: Bootstrap) -> RememberedTrees:
        """The forest as it is now, with rows drawn in this way."""
        t = self._trees
        gain = t.gain * gain_unit_of(bootstrap, self._n_left, self.ground.rules)
        if (gain + EPSILON < 0).any():  # of nodes that lost no row: their gain counts for more than before
            raise TooMuchError("a split gains less than nothing")
        node = np.arange(len(t.jump), dtype=np.int32)
        inner = np.flatnonzero(t.jump)
        right = np.where(t.jump > 0, node + t.jump, np.int32(-1))
        set_start, sets = np.zeros(len(inner) + 1, np.int64), np.empty(0, np.uint8)
        if self._sorted:
            n_codes, is_set = self.ground.table.n_codes[t.feature[inner]], t.set_at[inner] >= 0
            lengths = np.where(is_set, (n_codes + 8) >> 3, 0)
            set_start[1:] = np.cumsum(lengths)
            sets = self._sets[_ranges(np.maximum(t.set_at[inner], 0), lengths)]
            t.set_at[inner] = np.where(is_set, set_start[:-1], -1)
            self._sets = sets.copy()
        return RememberedTrees(
            Structure(self._offset.copy(), right),
            Splits(
                node=node[inner],
                feature=t.feature[inner],
                threshold=t.threshold[inner],
                missing_left=t.missing_left[inner].astype(np.bool_),
                set_start=set_start,
                sets=sets,
            ),
            t.feature.copy(),
            gain,
            self.leaves,
        )


def _of(draws: Any, rows: NDArray[np.int64] | None = None) -> tuple[Any, ...]:
    if rows is None:
        return draws.keys, draws.level, draws.first, draws.thresholds
    return draws.keys[rows], draws.level[rows], draws.first, draws.thresholds


def _ranges(start: NDArray[Any], sizes: NDArray[Any]) -> NDArray[np.int64]:
    """The numbers of all stretches, one after the other."""
    shifts: NDArray[np.int64] = np.repeat(start - (np.cumsum(sizes) - sizes), sizes)
    return np.arange(len(shifts), dtype=np.int64) + shifts


def _branch_ends(nodes: NDArray[np.int64], jump: NDArray[np.int32]) -> NDArray[np.int64]:
    """The node after the last one of each branch."""
    ends = nodes.copy()
    while (inner := jump[ends] > 0).any():
        ends = np.where(inner, ends + jump[ends], ends)
    return ends + 1


def _outermost(nodes: NDArray[np.int64], jump: NDArray[np.int32]) -> NDArray[np.int64]:
    """Which of some nodes, ascending, are below no other of them."""
    ends = _branch_ends(nodes, jump)
    before = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]]) if len(nodes) else ends
    return np.flatnonzero(nodes >= before)


def _shift_jumps(root: int, node: int, delta: int, jump: NDArray[np.int32], longer: NDArray[np.int32]) -> None:
    """A branch at ``node`` becomes longer: the right children that stand behind it move."""
    at = root
    while at != node:
        if node < at + jump[at]:
            longer[at] += delta
            at += 1
        else:
            at += int(jump[at])


def _replaced(array: NDArray[Any], nodes: list[tuple[int, int, kernels.Trees]], which: int) -> NDArray[Any]:
    pieces, done = [], 0
    for low, high, branch in nodes:
        pieces += [array[done:low], branch[which]]
        done = high
    return np.concatenate([*pieces, array[done:]])

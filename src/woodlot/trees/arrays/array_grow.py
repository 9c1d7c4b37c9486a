"""A party's side of growing on arrays: `Grower`'s interface, with rows, weights and codes on a graphics card.

Only what the protocol needs crosses: offers, packed sides of rows, and the sizes of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.arrays.array_draws import draw
from woodlot.trees.arrays.array_module import SHARE, ArrayModule
from woodlot.trees.arrays.array_rows import (
    SOURCE,
    Cuts,
    RowBatch,
    gather,
    join_flags,
    mixed,
    move,
    put_all,
    sides,
    sums_by_node,
    typed,
)
from woodlot.trees.arrays.array_search import BYTES_PER_ROW, ArraySearch, Search
from woodlot.trees.arrays.array_table import ArrayTable
from woodlot.trees.encoding import EncodedTable
from woodlot.trees.grow import BestSplits, Grower, LeafPart, Won
from woodlot.trees.kernels import rows as row_kernels
from woodlot.trees.rules import GrowthRules, SplitSides
from woodlot.trees.sampling import Bootstrap, tree_keys
from woodlot.trees.skeleton import Skeleton

P = ParamSpec("P")
T = TypeVar("T")


def on_card(method: Callable[Concatenate[ArrayGrower, P], T]) -> Callable[Concatenate[ArrayGrower, P], T]:
    """Turn what a card raises into a `DeviceError`."""

    @wraps(method)
    def guarded(grower: ArrayGrower, /, *args: P.args, **options: P.kwargs) -> T:
        with grower.arrays.guard():
            return method(grower, *args, **options)

    return guarded


class _SplitLevel(NamedTuple):
    """All splits of a level: enough to carry them out again on the CPU."""

    is_split: NDArray[np.bool_]
    is_own: NDArray[np.bool_]
    """Of the split nodes, those that this party has won."""
    sizes: NDArray[np.int64]
    own: NDArray[np.uint8]
    """Packed, as the next."""
    others: NDArray[np.uint8]

    def flags(self) -> NDArray[np.uint8]:
        """One flag per row of all split nodes."""
        flags = np.empty(int(self.sizes.sum()), np.uint8)
        ours = np.repeat(self.is_own, self.sizes)
        for some, bits in ((ours, self.own), (~ours, self.others)):
            flags[some] = np.unpackbits(bits, count=int(some.sum()), bitorder="little")
        return flags


class ArrayGrower(Grower):
    """Trees in flight at one party, on arrays of NumPy or of a card; parameters as for `Grower`."""

    def __init__(
        self,
        table: ArrayTable,
        feature_keys: NDArray[np.uint64],
        labels: NDArray[Any],
        n_classes: int,
        rules: GrowthRules,
        bootstrap: Bootstrap,
        seed: int,
        trees: Sequence[int],
        n_jobs: int,
    ) -> None:
        self.arrays: ArrayModule = table.arrays
        self._start_again = (feature_keys, labels, n_classes, rules, bootstrap, seed, trees, n_jobs)
        self._codes = table
        self.labels, self.n_classes, self.rules, self.n_jobs = labels, n_classes, rules, n_jobs
        self.feature_keys = feature_keys
        self.skeleton = Skeleton(tree_keys(seed, trees))
        self._won: list[Won] = []
        self._leaf_parts: list[LeafPart] = []
        self._log: list[_SplitLevel] = []
        self._committed = 0
        self._pending: tuple[NDArray[np.integer[Any]], NDArray[np.bool_] | None] | None = None
        with self.arrays.guard():
            self._set_up(bootstrap, trees)
            self._close(np.arange(len(trees), dtype=np.int64))

    def _set_up(self, bootstrap: Bootstrap, trees: Sequence[int]) -> None:
        self._on_card_rows, self._on_card_weights, bounds = draw(
            self.arrays, bootstrap, trees, self.labels, self.n_classes, self.n_jobs
        )
        self._on_card_labels = self.arrays.put(self.labels)
        self.start, self.end = bounds[:-1].copy(), bounds[1:].copy()
        self.root_sizes = self.end - self.start
        self._array_search = ArraySearch(
            self._codes, self.feature_keys, self._on_card_labels, self.n_classes, self.rules, bootstrap,
            self._on_card_rows, self._on_card_weights,
        )  # fmt: skip

    def brought_to_cpu(self, table: EncodedTable) -> Grower:
        """The same trees in the same state on the CPU, from what is kept here: no array of the card is read."""
        grower = Grower(table, *self._start_again)
        for level in self._log:
            grower.split(level.is_split, level.flags())
        if self._pending is not None:
            counts, won = self._pending
            grower.find(counts)
            if won is not None:
                grower.apply(won)
        grower._won = self._won[: self._committed] + grower._won
        return grower

    def _close(self, numbers: NDArray[np.int64], settled: NDArray[np.bool_] | None = None) -> None:
        super()._close(numbers, settled)
        self._own_flags: Any = self.arrays.xp.empty(0, self.arrays.xp.uint8)
        self._own_bits: NDArray[np.uint8] = np.empty(0, np.uint8)

    def _still_open(self) -> NDArray[np.bool_]:
        sizes = self.end - self.start
        rules = self.rules
        is_open = sizes >= max(rules.min_samples_split, 2 * rules.min_samples_leaf)
        if self.skeleton.depth >= rules.max_depth:
            is_open[:] = False
        some = np.flatnonzero(is_open)
        if len(some) == 0:
            return is_open
        arrays = self.arrays
        batch = self._array_search.gather(self.start[some], self.end[some])
        still = mixed(arrays, batch) > 0
        if rules.min_weight > 1:
            still &= sums_by_node(arrays, batch.weight, batch.first) >= 2 * rules.min_weight
        is_open[some] = arrays.get(still)
        return is_open

    @on_card
    def find(self, counts: NDArray[np.integer[Any]], searched: NDArray[np.bool_] | None = None) -> BestSplits:
        """The best split of this party's candidates at every open node; as ``Grower.find``."""
        arrays, n = self.arrays, len(self.start)
        whole, score, feature = np.zeros(n), np.full(n, -np.inf), np.full(n, -1, np.int32)
        nodes = np.arange(n) if searched is None else np.flatnonzero(searched)
        wanted = counts.astype(np.int64)
        sizes = (self.end - self.start)[nodes]
        parts, xp = self._array_search.batches(sizes, wanted[nodes]), arrays.xp
        for part in parts:
            some = nodes[part]
            key = self.skeleton.key[some]
            select = self.skeleton.root_key[some] if self.rules.whole_tree else key
            found, left_whole = self._array_search.find(self.start[some], self.end[some], key, select, wanted[some])
            score[some], feature[some] = arrays.get(found.score), arrays.get(found.feature)
            whole[some] = arrays.get(left_whole)
            if len(some) == n:
                self._found = found
                break
            if part is parts[0]:
                self._found = Search(*(xp.empty(n, column.dtype) for column in found))
            at = arrays.put(some)
            for kept, new in zip(self._found, found, strict=True):
                kept[at] = new
        self._feature = feature
        self._cut = np.where(feature >= 0, 0, -1)  # the cuts themselves stay on the card
        self._pending = (counts, None)
        return BestSplits(score, feature, whole)

    def find_candidates(self, counts: NDArray[np.integer[Any]], *, all_whole: bool) -> BestSplits:
        """As ``Grower.find_candidates``, with all scores: on a card the other features cost little."""
        return self.find(counts)

    def apply(self, won: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Carry out the splits this party has won; as ``Grower.apply``."""
        bits = self.apply_packed(won)
        return np.unpackbits(bits, count=int((self.end - self.start)[won].sum()), bitorder="little")

    @on_card
    def apply_packed(self, won: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """As `apply`, with the flags packed."""
        arrays, xp, table = self.arrays, self.arrays.xp, self._codes
        nodes = np.flatnonzero(won)
        if len(nodes) == 0:
            return np.empty(0, np.uint8)
        start, end = self.start[nodes], self.end[nodes]
        host_feature = self._feature[nodes].astype(np.int64)
        set_length = np.where(table.categorical[host_feature] == 1, (table.n_codes[host_feature] + 8) >> 3, 0)
        chosen = np.flatnonzero(set_length)
        set_start = np.full(len(nodes), -1, np.int64)
        set_start[chosen] = np.cumsum(set_length[chosen]) - set_length[chosen]
        at, feature, n_codes, sizes, sets_at, first_value = put_all(
            arrays, nodes, host_feature, table.n_codes[host_feature], end - start, set_start,
            table.first_value[host_feature],
        )  # fmt: skip
        feature = feature.astype(xp.int32)
        low, high, turned, has_missing = (column[at] for column in self._found[2:])
        sets = xp.empty(0, xp.uint8)
        if len(chosen):
            of = arrays.put(chosen)
            sets = self._array_search.left_categories(
                start[chosen], end[chosen], feature[of], low[of], sets_at[of], int(set_length.sum())
            )
        if self.rules.min_cell:  # from cells to the codes of the table
            shift = self._array_search.shifts(feature, sizes)
            low = xp.minimum(((low + 1) << shift) - 1, n_codes - 1)
            high = xp.where(high < 0, -1, high << shift)
        batch = self._array_search.gather(start, end)
        flags = sides(arrays, table.fine, batch, Cuts(feature, low, n_codes, turned, sets_at, sets))
        n_left = sums_by_node(arrays, flags, batch.first)
        most = 2 * n_left > sizes
        by_number = sets_at < 0
        missing_left = xp.where(by_number & (has_missing == 0), most, turned > 0)
        low, high = xp.where(by_number, low, -1), xp.where(by_number, high, -1)
        self._middle[nodes] = start + arrays.get(n_left)
        self._own_flags = flags
        self._own_bits = arrays.get(xp.packbits(flags, bitorder="little"))
        self._won.append(
            Won(
                number=self.skeleton.frontier[nodes],
                feature=self._feature[nodes],
                threshold=table.thresholds(host_feature, first_value, low, high),
                missing_left=arrays.get(missing_left).astype(bool),
                set_length=set_length,
                sets=arrays.get(sets),
            )
        )
        if self._pending is not None:
            self._pending = (self._pending[0], won)
        return self._own_bits

    def _all_flags(self, chosen: NDArray[np.int64], other_bits: NDArray[np.uint8]) -> tuple[RowBatch, Any]:
        """The rows of all split nodes, and their flags: this party's and the others'."""
        sizes = (self.end - self.start)[chosen]
        own = self._middle[chosen] >= 0
        before = np.empty(len(chosen), np.int64)
        for some in (own, ~own):
            before[some] = np.cumsum(sizes[some]) - sizes[some]
        batch = self._array_search.gather(self.start[chosen], self.end[chosen])
        return batch, join_flags(self.arrays, batch, self._own_flags, other_bits, before, own)

    @on_card
    def sides(self, is_split: NDArray[np.bool_], other_bits: NDArray[np.uint8]) -> SplitSides:
        """Rows, and where a rule asks weights, on both sides of all splits of a level; as ``Grower.sides``."""
        if self.rules.min_weight <= 1:
            return super().sides(is_split, other_bits)
        chosen = np.flatnonzero(is_split)
        if len(chosen) == 0:
            return SplitSides(np.empty((0, 2), np.int64), np.empty((0, 2), np.int64))
        batch, flags = self._all_flags(chosen, other_bits)
        n_left, rows = sums_by_node(self.arrays, flags, batch.first), (self.end - self.start)[chosen]
        weight = sums_by_node(self.arrays, batch.weight, batch.first)
        heavy = sums_by_node(self.arrays, batch.weight * flags.astype(batch.weight.dtype), batch.first)
        left, heavy, weight = (self.arrays.get(a) for a in (n_left, heavy, weight))
        return SplitSides(np.column_stack([left, rows - left]), np.column_stack([heavy, weight - heavy]))

    def split(
        self, is_split: NDArray[np.bool_], other_flags: NDArray[np.uint8], settled: NDArray[np.bool_] | None = None
    ) -> None:
        """Carry out all splits of a level; as ``Grower.split``."""
        self._split(is_split, np.packbits(other_flags, bitorder="little"), settled)

    def split_packed(self, is_split: NDArray[np.bool_], other_bits: NDArray[np.uint8], n_flags: int) -> None:
        """As `split`, with the flags packed."""
        self._split(is_split, other_bits, None)

    @on_card
    def _split(
        self,
        is_split: NDArray[np.bool_],
        other_bits: NDArray[np.uint8],
        settled: NDArray[np.bool_] | None,
    ) -> None:
        arrays = self.arrays
        chosen = np.flatnonzero(is_split)
        start, end = self.start[chosen], self.end[chosen]
        middle = start
        level = _SplitLevel(is_split, self._middle[chosen] >= 0, end - start, self._own_bits, np.array(other_bits))
        if len(chosen):
            batch, flags = self._all_flags(chosen, other_bits)
            middle = start + arrays.get(move(arrays, batch, flags, self._on_card_rows, self._on_card_weights))
            del batch, flags
        self._remember_leaves(self.skeleton.frontier, ~is_split)
        children = self.skeleton.split(is_split)
        self.start = np.column_stack([start, middle]).ravel()
        self.end = np.column_stack([middle, end]).ravel()
        self._close(children, settled)
        self._log.append(level)  # last, so that a level which fails in the middle is not among those to repeat
        self._pending, self._committed = None, len(self._won)

    def repeat(self, nodes: NDArray[np.int64], flags: NDArray[np.uint8]) -> None:
        """Carry out splits that this party has kept from a former forest; as ``Grower.repeat``."""
        sizes = (self.end - self.start)[nodes]
        first = np.cumsum(sizes) - sizes
        self._middle[nodes] = self.start[nodes] + np.add.reduceat(flags, first, dtype=np.int64)
        self._own_flags, self._own_bits = self.arrays.put(flags), np.packbits(flags, bitorder="little")

    @on_card
    def class_entries(
        self, numbers: NDArray[Any], start: NDArray[np.int64], end: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Classes and weights of some leaves; as ``Grower.class_entries``."""
        arrays, xp = self.arrays, self.arrays.xp
        labels = arrays.put(np.ascontiguousarray(numbers).astype(np.int64))
        none = np.empty(0, np.int64)
        entries, label, weight = [none], [none], [none]
        for part in self._leaf_batches(end - start):
            batch = gather(arrays, self._on_card_rows, self._on_card_weights, labels, start[part], end[part])
            # sorted by leaf and class; the weight takes the lowest 31 bits
            cell = batch.node_of.astype(xp.uint64) * xp.uint64(self.n_classes) + batch.label.astype(xp.uint64)
            keys = (cell << xp.uint64(31)) | batch.weight.astype(xp.uint64)
            keys.sort()
            cell = (keys >> xp.uint64(31)).astype(xp.int64)
            begins = xp.ones(len(keys), bool)
            begins[1:] = cell[1:] != cell[:-1]
            at = xp.flatnonzero(begins)
            first = xp.concatenate([at, xp.full(1, len(keys), xp.int64)])
            weight.append(arrays.get(sums_by_node(arrays, keys & xp.uint64((1 << 31) - 1), first)))
            label.append(arrays.get(cell[at] % self.n_classes))
            entries.append(arrays.get(xp.bincount(cell[at] // self.n_classes, minlength=part.stop - part.start)))
        return np.concatenate(entries), np.concatenate(label), np.concatenate(weight)

    def _leaf_batches(self, sizes: NDArray[np.int64]) -> list[slice]:
        """Parts of the leaves that fit the card: as if each had one candidate."""
        return self._array_search.batches(sizes, np.ones(len(sizes), np.int64))

    @on_card
    def target_sums(
        self, values: NDArray[np.float64], start: NDArray[np.int64], end: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Weight, and weighted sum of the rows' values, of some leaves; as ``Grower.target_sums``."""
        arrays, xp, n = self.arrays, self.arrays.xp, len(start)
        if not arrays.on_card:
            totals = np.zeros((n, 2))
            row_kernels.target_totals(self._on_card_rows, self._on_card_weights, values, start, end, totals)
            return totals[:, 0].astype(np.int64), totals[:, 1]
        weight, total = xp.empty(n), xp.empty(n)
        source = typed(SOURCE, WEIGHT=self._on_card_weights, LABEL=self._on_card_weights, CODE=self._on_card_rows)
        arrays.launch(
            source, "target_totals", n, self._on_card_rows, self._on_card_weights, arrays.put(values),
            arrays.put(start), arrays.put(end), np.int64(n), weight, total,
        )  # fmt: skip
        return arrays.get(weight).astype(np.int64), arrays.get(total)


TREE_BYTES = BYTES_PER_ROW
"""Card memory for each row of each tree that grows: its number and weight, and what a level gathers of it."""


def trees_on_card(arrays: ArrayModule, n_rows: int, code_bytes: int) -> int:
    """How many trees of a table may grow at the same time on a card, whose codes take so many bytes; at least one."""
    free = int(arrays.memory * SHARE) // 2 - code_bytes
    return max(1, free // max(TREE_BYTES * n_rows, 1))

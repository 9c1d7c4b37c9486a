"""A party's side of growing on arrays: `Grower`'s interface, with rows, weights and codes on a graphics card.

Only what the protocol needs crosses: offers, packed sides of rows, and the sizes of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.arrays.array_best import Choice
from woodlot.trees.arrays.array_draws import draw
from woodlot.trees.arrays.array_module import SHARE, ArrayModule
from woodlot.trees.arrays.array_rows import (
    SOURCE,
    Cuts,
    RowBatch,
    gather,
    join_bits,
    mixed,
    move,
    side_bits,
    sums_by_node,
    typed,
)
from woodlot.trees.arrays.array_search import BYTES_PER_ROW, ArraySearch
from woodlot.trees.arrays.array_table import ArrayTable
from woodlot.trees.encoding import EncodedTable
from woodlot.trees.grow import BestSplits, Grower, LeafPart, LevelSides, Won, ones_by_node
from woodlot.trees.kernels import levels
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
    """Of the open nodes, those that this party has split."""
    sizes: NDArray[np.int64]
    """Rows of each open node."""
    own: NDArray[np.uint8]
    """Packed, as the next."""
    others: NDArray[np.uint8]

    def flags(self) -> NDArray[np.uint8]:
        """One flag per row of all split nodes."""
        sizes = self.sizes[self.is_split]
        flags = np.empty(int(sizes.sum()), np.uint8)
        ours = np.repeat(self.is_own[self.is_split], sizes)
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
        self._no_bits = self.arrays.xp.empty(0, self.arrays.xp.uint8)
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
        self._batch = self._array_search.gather(self.start, self.end) if len(self.start) else None
        self._own_bits: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._own_bits_here: Any = self._no_bits
        self._last_sides: tuple[NDArray[np.bool_], NDArray[np.uint8], LevelSides] | None = None

    def _still_open(self) -> NDArray[np.bool_]:
        sizes = self.end - self.start
        rules = self.rules
        is_open = sizes >= max(rules.min_samples_split, 2 * rules.min_samples_leaf)
        if self.skeleton.depth >= rules.max_depth:
            is_open[:] = False
        some = np.flatnonzero(is_open)
        if len(some) == 0:
            return is_open
        arrays, start, end = self.arrays, self.start[some], self.end[some]
        is_open[some] = arrays.get(mixed(arrays, self._on_card_rows, self._on_card_labels, start, end)) > 0
        if rules.min_weight > 1:
            batch = self._array_search.gather(start, end)
            is_open[some] &= arrays.get(sums_by_node(arrays, batch.weight, batch.first)) >= 2 * rules.min_weight
        return is_open

    @on_card
    def find(self, counts: NDArray[np.integer[Any]], searched: NDArray[np.bool_] | None = None) -> BestSplits:
        """The best split of this party's candidates at every open node; as ``Grower.find``."""
        n = len(self.start)
        nodes = np.arange(n) if searched is None else np.flatnonzero(searched)
        wanted = counts.astype(np.int64)
        parts = self._array_search.batches((self.end - self.start)[nodes], wanted[nodes])
        if len(parts) == 1 and len(nodes) == n:
            select = self.skeleton.root_key if self.rules.whole_tree else self.skeleton.key
            self._found, told = self._array_search.find(
                self.start, self.end, self.skeleton.key, select, wanted, self._batch
            )
        else:
            told = self._find_in_parts(nodes, parts, wanted)
        self._feature, self._turned, self._has_missing = told.feature, told.turned, told.has_missing
        self._cut = np.where(told.feature >= 0, 0, -1)  # the cuts themselves stay on the card
        self._pending = (counts, None)
        return BestSplits(told.score, told.feature, told.whole)

    def _find_in_parts(self, nodes: NDArray[np.int64], parts: list[slice], wanted: NDArray[np.int64]) -> Choice:
        """Search some of the open nodes, so many at a time; returns what is told of all of them."""
        self._found, told = Choice.of(self.arrays.xp, len(self.start)), Choice.of(np, len(self.start))
        told.put(slice(None), Choice(-1, -1, -np.inf, 0.0, -1, 0, 0, None))
        for part in parts:
            some = nodes[part]
            key = self.skeleton.key[some]
            select = self.skeleton.root_key[some] if self.rules.whole_tree else key
            found, new = self._array_search.find(self.start[some], self.end[some], key, select, wanted[some])
            self._found.put(self.arrays.put(some), found)
            told.put(some, new._replace(low=-1, high=-1))
        return told

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
        arrays, xp, table, batch = self.arrays, self.arrays.xp, self._codes, self._batch
        nodes = np.flatnonzero(won)
        if len(nodes) == 0 or batch is None:
            return np.empty(0, np.uint8)
        start, end = self.start[nodes], self.end[nodes]
        sizes, feature = end - start, self._feature[nodes]
        by_number = np.ones(len(nodes), bool)
        set_length, sets, set_start = np.zeros(len(nodes), np.int64), self._no_bits, None
        if table.categorical.any():
            by_number = table.categorical[feature] == 0
            set_length = np.where(by_number, 0, (table.n_codes[feature] + 8) >> 3)
            sets, set_start = self._left_categories(nodes, set_length)
        found = self._found
        if self.rules.min_cell:  # from cells to the codes of the table
            found = self._array_search.in_table_codes(found, xp.diff(batch.first))
        cuts = Cuts(found.feature, found.low, found.turned, self._array_search.n_codes, set_start, sets)
        bits, n_bytes, here = side_bits(arrays, table.fine, batch, cuts, nodes, sizes)
        threshold = table.thresholds(here, found.feature, found.low, found.high)
        self._own_bits_here, self._own_bits = bits, arrays.get(bits)[:n_bytes]
        n_left = ones_by_node(self._own_bits, sizes)
        self._middle[nodes] = start + n_left
        self._won.append(
            Won(
                number=self.skeleton.frontier[nodes],
                feature=feature,
                threshold=arrays.get(threshold),
                missing_left=np.where(
                    by_number & (self._has_missing[nodes] == 0), 2 * n_left > sizes, self._turned[nodes] > 0
                ),
                set_length=set_length,
                sets=arrays.get(sets) if len(sets) else _NO_SETS,
            )
        )
        if self._pending is not None:
            self._pending = (self._pending[0], won)
        return self._own_bits

    def _left_categories(self, nodes: NDArray[np.int64], set_length: NDArray[np.int64]) -> tuple[Any, Any]:
        """The categories that the splits of some nodes send left, and where those of each node begin (-1: none)."""
        arrays, xp = self.arrays, self.arrays.xp
        chosen = np.flatnonzero(set_length)
        set_start = np.full(len(nodes), -1, np.int64)
        set_start[chosen] = np.cumsum(set_length[chosen]) - set_length[chosen]
        if len(chosen) == 0:
            return xp.empty(0, xp.uint8), None
        some = nodes[chosen]
        at = arrays.put(some)
        sets = self._array_search.left_categories(
            self.start[some], self.end[some], self._found.feature[at], self._found.low[at],
            arrays.put(set_start[chosen]), int(set_length.sum()),
        )  # fmt: skip
        return sets, arrays.put(set_start)

    @on_card
    def sides(self, is_split: NDArray[np.bool_], other_bits: NDArray[np.uint8]) -> SplitSides:
        """Rows, and where a rule asks weights, on both sides of all splits of a level; as ``Grower.sides``."""
        level = self._level_sides(is_split, other_bits)
        batch = self._batch
        if self.rules.min_weight <= 1 or batch is None:
            return SplitSides(level.both, None)
        flags, weight = self._flags(batch, level.place, other_bits), batch.weight
        parts = weight * flags.astype(weight.dtype), weight
        heavy, whole = (self.arrays.get(sums_by_node(self.arrays, part, batch.first))[is_split] for part in parts)
        return SplitSides(level.both, np.column_stack([heavy, whole - heavy]))

    def _level_sides(self, is_split: NDArray[np.bool_], other_bits: NDArray[np.uint8]) -> LevelSides:
        last = self._last_sides
        if (
            last is None or last[0] is not is_split or last[1] is not other_bits
        ):  # asked for twice: looked at, then done
            last = self._last_sides = is_split, other_bits, super()._level_sides(is_split, other_bits)
        return last[2]

    def _flags(self, batch: RowBatch, place: NDArray[np.int64], other_bits: NDArray[np.uint8]) -> Any:
        """One flag per row of the open nodes: of this party's splits, the others', and 1 where there is none."""
        return join_bits(self.arrays, batch, self._own_bits_here, other_bits, place)

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
        sides = self._level_sides(is_split, other_bits)
        start, end = self.start, self.end
        level = _SplitLevel(is_split, self._middle >= 0, end - start, self._own_bits, np.array(other_bits))
        if len(sides.both) and self._batch is not None:
            flags = self._flags(self._batch, sides.place, other_bits)
            move(self.arrays, self._batch, flags, self._on_card_rows, self._on_card_weights)
            del flags
        self._batch = None  # its memory is that of the next level's rows
        self._remember_leaves(self.skeleton.frontier, ~is_split)
        numbers = self.skeleton.split(is_split)
        self.start, self.end = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
        levels.children(is_split, start, end, sides.both, self.start, self.end)
        self._close(numbers, settled)
        self._log.append(level)  # last, so that a level which fails in the middle is not among those to repeat
        self._pending, self._committed = None, len(self._won)

    def repeat(self, nodes: NDArray[np.int64], flags: NDArray[np.uint8]) -> None:
        """Carry out splits that this party has kept from a former forest; as ``Grower.repeat``."""
        sizes = (self.end - self.start)[nodes]
        first = np.cumsum(sizes) - sizes
        self._middle[nodes] = self.start[nodes] + np.add.reduceat(flags, first, dtype=np.int64)
        self._own_bits = np.packbits(flags, bitorder="little")
        self._own_bits_here = self.arrays.put(self._own_bits)

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


_NO_SETS = np.empty(0, np.uint8)
TREE_BYTES = BYTES_PER_ROW
"""Card memory for each row of each tree that grows: its number and weight, and what a level gathers of it."""


def trees_on_card(arrays: ArrayModule, n_rows: int, code_bytes: int) -> int:
    """How many trees of a table may grow at the same time on a card, whose codes take so many bytes; at least one."""
    free = int(arrays.memory * SHARE) // 2 - code_bytes
    return max(1, free // max(TREE_BYTES * n_rows, 1))

"""The search for splits on arrays: pairs, keys, sums and scores of some nodes at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.arrays.array_best import Limits, best_cuts, choose_pairs
from woodlot.trees.arrays.array_keys import KeyLayout, layout_of, make_keys
from woodlot.trees.arrays.array_module import SHARE
from woodlot.trees.arrays.array_pairs import Pairs, list_pairs, turn_pairs
from woodlot.trees.arrays.array_rows import RowBatch, bounds_of, gather, put_all, sums_by_node
from woodlot.trees.arrays.array_sums import node_totals, rank_categories, run_sums, with_ranks, xlogx_of
from woodlot.trees.arrays.array_table import ArrayTable
from woodlot.trees.kernels.wide import fill_xlogx, xlogx_numbers
from woodlot.trees.rules import XLOGX_SIZE, GrowthRules, entropy_scale
from woodlot.trees.sampling import Bootstrap

KEYS_AT_ONCE = 1 << 28
"""Most keys that are sorted at a time on a card."""
KEYS_ON_HOST = 1 << 22
"""The same on NumPy."""
BYTES_PER_KEY = {"two": 40, "targets": 72, "many": 160}
"""Upper estimates of the card's memory for each key: the keys, what sorting needs, and running sums."""
BYTES_PER_ROW = 64
"""The same for each row of the nodes that are searched together."""


class Search(NamedTuple):
    """What was found at some nodes; see `array_best.Choice`."""

    score: Any
    feature: Any
    """int32; -1: none"""
    low: Any
    high: Any
    turned: Any
    has_missing: Any


class ArraySearch:
    """The best splits of a party's features; parameters as for ``search.SplitSearch``."""

    def __init__(
        self,
        table: ArrayTable,
        feature_keys: NDArray[np.uint64],
        labels: Any,
        n_classes: int,
        rules: GrowthRules,
        bootstrap: Bootstrap,
        rows: Any,
        weights: Any,
    ) -> None:
        self._arrays = arrays = table.arrays
        self._table = table
        self._keys = arrays.put(feature_keys)
        self._n_codes = arrays.put(table.n_codes)
        self._has_missing = arrays.put(table.has_missing)
        self._categorical = arrays.put(table.categorical) if table.categorical.any() else None
        turns = (table.has_missing == 1) & (table.categorical == 0)
        self._may_turn = arrays.put(turns.astype(np.uint8)) if turns.any() else None
        self._labels, self._n_classes, self._rules = labels, n_classes, rules
        self._rows, self._weights = rows, weights
        self._heaviest = int(weights.max()) if len(weights) else 1
        self._limits = Limits(rules.min_samples_leaf, rules.min_weight)
        self._xlogx, self._xlogx_table = None, None
        if rules.entropy and n_classes:
            n_rows = len(labels)
            scale = float(entropy_scale(bootstrap, n_rows))
            table_of_xlogx: NDArray[np.int64] | None = None
            if bootstrap.tree_weight(n_rows) <= max(n_rows, bootstrap.n_draws, XLOGX_SIZE):
                table_of_xlogx = np.zeros(bootstrap.tree_weight(n_rows) + 1, np.int64)
                fill_xlogx(table_of_xlogx, scale)
                self._xlogx_table = arrays.put(table_of_xlogx)
            self._xlogx = xlogx_of(arrays, self._xlogx_table, lambda x: xlogx_numbers(x, scale))
        way = "targets" if n_classes == 0 else "two" if n_classes == 2 else "many"
        self._at_once = KEYS_ON_HOST
        if arrays.on_card:
            self._at_once = min(KEYS_AT_ONCE, int(arrays.memory * SHARE) // (2 * BYTES_PER_KEY[way]))

    def batches(self, sizes: NDArray[np.int64], pairs: NDArray[np.int64]) -> list[slice]:
        """Cut nodes of so many rows and candidates into parts that are searched together."""
        if len(sizes) == 0:
            return []
        pairs = pairs * (1 if self._may_turn is None else 2)
        # many classes are sorted by pair, class and place among the keys
        most = min(self._layout(int(sizes.max())).pairs(), (1 << 35) // max(self._n_classes, 1))
        keys, listed = np.cumsum(sizes * np.maximum(pairs, 1)), np.cumsum(np.maximum(pairs, 1))
        bounds = [0]
        while bounds[-1] < len(sizes):
            at = bounds[-1]
            done = (0, 0) if at == 0 else (int(keys[at - 1]), int(listed[at - 1]))
            end = min(
                int(np.searchsorted(keys, done[0] + self._at_once, side="right")),
                int(np.searchsorted(listed, done[1] + most, side="right")),
            )
            bounds.append(max(end, at + 1))
        return [slice(a, b) for a, b in pairwise(bounds)]

    def _layout(self, largest: int) -> KeyLayout:
        codes = int(self._table.n_codes.max(initial=0)) + 1 + (self._may_turn is not None)
        return layout_of(codes, self._n_classes, self._heaviest, largest)

    def gather(self, start: NDArray[np.int64], end: NDArray[np.int64]) -> RowBatch:
        """The rows of some nodes."""
        return gather(self._arrays, self._rows, self._weights, self._labels, start, end)

    def find(
        self,
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        order_key: NDArray[np.uint64],
        select_key: NDArray[np.uint64],
        counts: NDArray[np.int64],
    ) -> tuple[Search, Any]:
        """The best split of each of some nodes, and their scores left whole; parameters as for ``SplitSearch.find``."""
        arrays, p = self._arrays, len(self._keys)
        goes_on = not self._rules.whole_tree
        batch = self.gather(start, end)
        totals = node_totals(
            arrays, batch, self._n_classes, self._xlogx, self._xlogx_table, with_top=self._categorical is not None
        )
        # a node without candidates begins with the first feature in order, as the search would go on
        high = np.minimum(np.maximum(counts, 1), p) if goes_on else counts
        found = self._evaluate(batch, end - start, order_key, select_key, 0 * high, high, totals.top, in_order=False)
        tried, step = high, 1
        while goes_on:
            feature = arrays.get(found.feature)
            failed = np.flatnonzero((feature < 0) & (tried < p))
            if len(failed) == 0:
                break
            further = np.minimum(tried[failed] + step, p)
            some = self._go_on(start, end, order_key, failed, tried[failed], further)
            at = arrays.put(failed)
            for old, new in zip(found, some, strict=True):
                old[at] = new
            tried[failed] = further
            step *= 2
        return found, totals.whole

    def _go_on(
        self,
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        order_key: NDArray[np.uint64],
        failed: NDArray[np.int64],
        low: NDArray[np.int64],
        high: NDArray[np.int64],
    ) -> Search:
        """Try more features in order at nodes where none has been able to split."""
        start, end, order_key = start[failed], end[failed], order_key[failed]
        parts = []
        for part in self.batches(end - start, high - low):
            batch = self.gather(start[part], end[part])
            top = None
            if self._categorical is not None:
                top = node_totals(self._arrays, batch, self._n_classes, None, None, with_top=True).top
            key, sizes = order_key[part], (end - start)[part]
            parts.append(self._evaluate(batch, sizes, key, key, low[part], high[part], top, in_order=True))
        return Search(*(self._arrays.xp.concatenate(column) for column in zip(*parts, strict=True)))

    def _evaluate(
        self,
        batch: RowBatch,
        sizes: NDArray[np.int64],
        order_key: NDArray[np.uint64],
        select_key: NDArray[np.uint64],
        low: NDArray[np.int64],
        high: NDArray[np.int64],
        top: Any,
        *,
        in_order: bool,
    ) -> Search:
        arrays, xp = self._arrays, self._arrays.xp
        wanted = high - low
        rows, order, select, *window = put_all(
            arrays, sizes, order_key, select_key, low, high, np.cumsum(wanted) - wanted
        )
        order, select = order.view(xp.uint64), select.view(xp.uint64)
        listed = list_pairs(arrays, select, order, window, int(wanted.sum()), int(high.max()), self._keys)
        if len(listed[0]) == 0:
            none, no = xp.full(len(sizes), -1, xp.int64), xp.zeros(len(sizes), xp.uint8)
            return Search(xp.full(len(sizes), -xp.inf), none.astype(xp.int32), none, none.copy(), no, no.copy())
        pairs = turn_pairs(arrays, listed, self._may_turn, rows, int((sizes * wanted).sum()))
        layout = self._layout(int(sizes.max()))
        keys, shift = self._sorted_keys(batch, pairs, rows, layout)
        if self._categorical is not None:
            segment, rank, pair, _ = rank_categories(
                arrays, keys, batch, pairs, layout, self._categorical, self._n_classes, top
            )
            keys = with_ranks(arrays, keys, layout, segment, rank, pair)
        runs = run_sums(arrays, keys, batch, pairs, layout, self._n_classes, self._xlogx)
        best, at = best_cuts(arrays, keys, pairs, runs, layout, self._xlogx, self._xlogx_table, self._limits)
        del runs
        missing = self._n_codes[pairs.feature]
        if shift is not None:
            missing = xp.where(shift > 0, ((missing - 1) >> shift) + 1, missing)
        choice = choose_pairs(arrays, keys, pairs, missing, best, at, layout, in_order=in_order)
        return Search(choice.score, choice.feature, choice.low, choice.high, choice.turned, choice.has_missing)

    def _sorted_keys(self, batch: RowBatch, pairs: Pairs, sizes: Any, layout: KeyLayout) -> tuple[Any, Any]:
        shift = None
        if self._rules.min_cell:
            shift = self.shifts(pairs.feature, sizes[pairs.node])
        keys = make_keys(self._arrays, self._table.fine, self._n_codes, batch, pairs, shift, layout)
        keys.sort()
        return keys, shift

    def shifts(self, feature: Any, sizes: Any) -> Any:
        """How many low bits the codes of features lack at nodes of so many rows: ``coarsening.shifts`` (int32)."""
        xp, min_cell = self._arrays.xp, self._rules.min_cell
        if not min_cell:
            return xp.zeros(len(feature), xp.int32)
        of_values = xp.maximum(sizes // min_cell - self._has_missing[feature].astype(xp.int64), 1)
        cells = xp.maximum(self._n_codes[feature] - 1, 0) // of_values
        return xp.frexp(cells.astype(xp.float64))[1].astype(xp.int32)

    def left_categories(
        self, start: NDArray[np.int64], end: NDArray[np.int64], feature: Any, low: Any, set_start: Any, n_bytes: int
    ) -> Any:
        """The categories that splits send left, packed; those that do not occur in a node go where most rows go.

        ``low`` is the last rank on the left; ``set_start`` (int64) says where the bytes of each node begin.
        """
        arrays, xp = self._arrays, self._arrays.xp
        n = len(start)
        batch = self.gather(start, end)
        numbers = xp.arange(n + 1, dtype=xp.int64)
        sizes = arrays.put(end - start)
        pairs = Pairs(
            numbers[:-1].astype(xp.int32), feature, xp.zeros(n, xp.uint64), xp.zeros(n, xp.uint8), numbers, batch.first,
            batch.n_rows,
        )  # fmt: skip
        layout = self._layout(int((end - start).max()))
        top = node_totals(arrays, batch, self._n_classes, None, None, with_top=True).top
        keys, shift = self._sorted_keys(batch, pairs, sizes, layout)
        segment, rank, pair, code = rank_categories(
            arrays, keys, batch, pairs, layout, self._categorical, self._n_classes, top
        )
        left = rank <= low[pair]
        n_left = sums_by_node(arrays, left[segment], batch.first)
        most = n_left > sizes - n_left
        bit_start = set_start * 8
        first_bit = bounds_of(arrays, xp.diff(xp.append(bit_start, n_bytes * 8)))
        bits = xp.zeros(n_bytes * 8, xp.int64)
        bits[first_bit[1:-1]] = 1
        node = xp.cumsum(bits)
        goes = most[node]
        goes[bit_start[pair] + code] = left
        offset = xp.arange(n_bytes * 8, dtype=xp.int64) - bit_start[node]
        n_codes = self._n_codes[feature][node]
        cell = offset
        if shift is not None:
            s = shift[node]
            cell = xp.where((offset == n_codes) & (s > 0), ((n_codes - 1) >> s) + 1, offset >> s)
        inside = offset <= n_codes
        goes = goes[bit_start[node] + xp.where(inside, cell, 0)] & inside
        return xp.packbits(goes, bitorder="little")

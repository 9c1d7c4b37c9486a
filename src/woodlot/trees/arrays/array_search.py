"""The search for splits on arrays: pairs, keys, sums and scores of some nodes at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.arrays.array_best import Choice, Limits, best_cuts, choose_pairs
from woodlot.trees.arrays.array_keys import KeyLayout, layout_of, make_keys
from woodlot.trees.arrays.array_module import SHARE
from woodlot.trees.arrays.array_pairs import Pairs, list_pairs, turn_pairs
from woodlot.trees.arrays.array_rows import RowBatch, bounds_of, gather, sums_by_node
from woodlot.trees.arrays.array_sums import NodeTotals, node_totals, rank_categories, run_sums, with_ranks, xlogx_of
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
        self.n_codes = arrays.put(table.n_codes)
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
        self._whole_from_pairs = (
            arrays.on_card
            and n_classes == 2
            and self._categorical is None
            and (self._xlogx is None or self._xlogx_table is not None)
        )
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
        batch: RowBatch | None = None,
    ) -> tuple[Choice, Choice]:
        """The best split of each of some nodes, here and as the process is told; as ``SplitSearch.find``.

        ``batch`` has the rows of these nodes, if they are gathered already.
        """
        arrays, p = self._arrays, len(self._keys)
        goes_on = not self._rules.whole_tree
        batch = self.gather(start, end) if batch is None else batch
        totals = NodeTotals(None, None)
        if not (self._whole_from_pairs and goes_on):
            with_top = self._categorical is not None
            totals = node_totals(arrays, batch, self._n_classes, self._xlogx, with_top=with_top)
        # a node without candidates begins with the first feature in order, as the search would go on
        high = np.minimum(np.maximum(counts, 1), p) if goes_on else counts
        found = self._evaluate(batch, end - start, order_key, select_key, None, high, totals, in_order=False)
        told = found.told(arrays)
        tried, step = high, 1
        while goes_on:
            failed = np.flatnonzero((told.feature < 0) & (tried < p))
            if len(failed) == 0:
                break
            further = np.minimum(tried[failed] + step, p)
            for part, some in self._go_on(start, end, order_key, failed, tried[failed], further):
                found.put(arrays.put(part), some)
            told = found.told(arrays)
            tried[failed] = further
            step *= 2
        return found, told

    def _go_on(
        self,
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        order_key: NDArray[np.uint64],
        failed: NDArray[np.int64],
        low: NDArray[np.int64],
        high: NDArray[np.int64],
    ) -> Iterator[tuple[NDArray[np.int64], Choice]]:
        """Try more features in order at nodes where none has been able to split."""
        arrays = self._arrays
        for part in self.batches((end - start)[failed], high - low):
            some = failed[part]
            batch, key = self.gather(start[some], end[some]), order_key[some]
            with_top = self._categorical is not None
            totals = node_totals(arrays, batch, self._n_classes, self._xlogx, with_top=with_top)
            sizes = (end - start)[some]
            yield some, self._evaluate(batch, sizes, key, key, low[part], high[part], totals, in_order=True)

    def _evaluate(
        self,
        batch: RowBatch,
        sizes: NDArray[np.int64],
        order_key: NDArray[np.uint64],
        select_key: NDArray[np.uint64],
        low: NDArray[np.int64] | None,
        high: NDArray[np.int64],
        totals: NodeTotals,
        *,
        in_order: bool,
    ) -> Choice:
        arrays, xp, n = self._arrays, self._arrays.xp, len(sizes)
        wanted = high if low is None else high - low
        pairs = self._pairs(batch, sizes, order_key, select_key, low, wanted, int(high.max()))
        if pairs is None:
            none = Choice.of(xp, n)
            none.put(slice(None), Choice(-1, -1, -xp.inf, totals.whole, -1, 0, 0, None))
            return none
        layout = self._layout(int(sizes.max()))
        keys, shift = self._sorted_keys(batch, pairs, layout)
        if self._categorical is not None:
            segment, rank, pair, _ = rank_categories(
                arrays, keys, batch, pairs, layout, self._categorical, self._n_classes, totals.top
            )
            keys = with_ranks(arrays, keys, layout, segment, rank, pair)
        runs = run_sums(arrays, keys, batch, pairs, layout, self._n_classes, self._xlogx)
        best, at = best_cuts(arrays, keys, pairs, runs, layout, self._xlogx, self._xlogx_table, self._limits)
        whole = (runs.a, self._xlogx_table) if totals.whole is None else totals.whole
        codes = self.n_codes, shift
        return choose_pairs(arrays, keys, pairs, codes, best, at, layout, whole, in_order=in_order)

    def _pairs(
        self,
        batch: RowBatch,
        sizes: NDArray[np.int64],
        order_key: NDArray[np.uint64],
        select_key: NDArray[np.uint64],
        low: NDArray[np.int64] | None,
        wanted: NDArray[np.int64],
        most: int,
    ) -> Pairs | None:
        """So many features of each node, from ``low`` on in its order; None where there are none at all."""
        arrays, xp, n = self._arrays, self._arrays.xp, len(sizes)
        known = np.zeros((5, n + 1), np.int64)  # one copy takes as long as a single short one
        np.cumsum(wanted, out=known[0, 1:])
        np.cumsum(wanted * sizes, out=known[1, 1:])
        known[2, :n], known[3, :n] = order_key.view(np.int64), select_key.view(np.int64)
        if low is not None:
            known[4, :n] = low
        total, n_keys = int(known[0, n]), int(known[1, n])
        if total == 0:
            return None
        rows = 5 if low is not None else 4 if select_key is not order_key else 3
        of_node, first_key, *given = arrays.put(known[:rows])
        order = given[0][:n].view(xp.uint64)
        select = order if rows == 3 else given[1][:n].view(xp.uint64)
        node, feature, place, first = list_pairs(
            arrays, select, order, given[2][:n] if low is not None else None, of_node, (total, most), self._keys,
            (batch.first, first_key) if self._may_turn is None else None,
        )  # fmt: skip
        if self._may_turn is not None:
            return turn_pairs(arrays, (node, feature, place), self._may_turn, xp.diff(batch.first))
        return Pairs(node, feature, place, xp.zeros(total, xp.uint8), of_node, first, n_keys)

    def _sorted_keys(self, batch: RowBatch, pairs: Pairs, layout: KeyLayout) -> tuple[Any, Any]:
        shift = None
        if self._rules.min_cell:
            shift = self.shifts(pairs.feature, self._arrays.xp.diff(batch.first)[pairs.node])
        keys = make_keys(self._arrays, self._table.fine, self.n_codes, batch, pairs, shift, layout)
        keys.sort()
        return keys, shift

    def shifts(self, feature: Any, sizes: Any) -> Any:
        """How many low bits the codes of features lack at nodes of so many rows: ``coarsening.shifts`` (int32)."""
        xp, min_cell = self._arrays.xp, self._rules.min_cell
        if not min_cell:
            return xp.zeros(len(feature), xp.int32)
        of_values = xp.maximum(sizes // min_cell - self._has_missing[feature].astype(xp.int64), 1)
        cells = xp.maximum(self.n_codes[feature] - 1, 0) // of_values
        return xp.frexp(cells.astype(xp.float64))[1].astype(xp.int32)

    def in_table_codes(self, found: Choice, sizes: Any) -> Choice:
        """Cuts between cells of codes as cuts between codes; categories have ranks in their place, and none."""
        xp = self._arrays.xp
        feature = xp.maximum(found.feature, 0)
        shift = self.shifts(feature, sizes)
        low = xp.minimum(((found.low + 1) << shift) - 1, self.n_codes[feature] - 1)
        return found._replace(low=low, high=xp.where(found.high < 0, -1, found.high << shift))

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
        top = node_totals(arrays, batch, self._n_classes, None, with_top=True).top
        keys, shift = self._sorted_keys(batch, pairs, layout)
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
        n_codes = self.n_codes[feature][node]
        cell = offset
        if shift is not None:
            s = shift[node]
            cell = xp.where((offset == n_codes) & (s > 0), ((n_codes - 1) >> s) + 1, offset >> s)
        inside = offset <= n_codes
        goes = goes[bit_start[node] + xp.where(inside, cell, 0)] & inside
        return xp.packbits(goes, bitorder="little")

"""The search for splits: which kernels suit the table, the labels and the size of a node, and their work space."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.coarsening import cells_of_codes, last_code
from woodlot.trees.encoding import EncodedTable
from woodlot.trees.kernels import class_keys, classes, targets, tiny_targets, wide
from woodlot.trees.kernels.search import (
    BY_NODE_IN_LARGE_TABLE,
    BY_NODE_UP_TO,
    IN_ORDER_UP_TO,
    TINY,
    Columns,
    Rules,
    Scratch,
    list_candidates,
    make_scratch,
    next_candidates,
    search_twos,
)
from woodlot.trees.rules import XLOGX_SIZE, GrowthRules, entropy_scale
from woodlot.trees.sampling import COMPACT_WEIGHT, WEIGHT_BITS, Bootstrap

CACHE_BYTES = 4 << 20
"""A table of codes up to this size stays in a core's cache whichever way it is read."""
PAIR = (np.int32, np.int32, np.uint64)
"""What is listed of a node and one of its candidates: node, feature, and its place in the node's order."""

Gathered = tuple[NDArray[Any], ...]
"""The rows' labels, where those of each node begin, and the nodes' totals; of classes also weights and squares."""
Found = tuple[NDArray[Any], ...]
"""By node: score, feature, its place in the node's order, cut, and whether missing values go left."""
Evaluate = Callable[[list[NDArray[Any]], int, Found], None]
"""Searches pairs of nodes and candidates, of which there are so many."""


@lru_cache(maxsize=2)
def _xlogx(size: int, scale: float) -> NDArray[np.int64]:
    """The table of x*log2(x); kept, for whoever searches few nodes at a time would mostly make tables."""
    table = np.zeros(size, np.int64)
    wide.fill_xlogx(table, scale)
    return table


def _heaviest(weights: NDArray[Any], n_rows: int) -> int:
    """The most that so many of the rows can weigh, for weights of one byte."""
    number = np.bincount(weights, minlength=COMPACT_WEIGHT + 1)[::-1]
    taken = np.diff(np.minimum(np.cumsum(number), n_rows), prepend=0)
    return int(taken @ np.arange(COMPACT_WEIGHT, -1, -1))


class SplitSearch:
    """The best splits of a party's features at nodes of any size; may be used by several threads at once.

    Parameters
    ----------
    table, feature_keys, labels, n_classes, rules, bootstrap
        As for `Grower`.
    rows, weights : arrays
        The rows of all nodes, node after node, and their weights; the grower moves them from level to level.
    largest : int
        Rows of the largest node.
    """

    def __init__(
        self,
        table: EncodedTable,
        feature_keys: NDArray[np.uint64],
        labels: NDArray[Any],
        n_classes: int,
        rules: GrowthRules,
        bootstrap: Bootstrap,
        rows: NDArray[np.uint32],
        weights: NDArray[Any],
        largest: int,
    ) -> None:
        self._levels = table.levels if rules.min_cell else None
        self._n_codes = table.n_codes
        table = table if self._levels is None else self._levels.table
        self._table = table
        self._feature_keys = feature_keys
        self._labels = labels
        self._n_classes = n_classes
        self._rules = rules
        self._rows = rows
        self._weights = weights
        self._columns = Columns(*(getattr(table, name) for name in Columns._fields))
        n_rows = len(labels)
        self._wide = (
            n_classes > 256
            or weights.dtype != np.uint8
            or largest * COMPACT_WEIGHT >= 2**WEIGHT_BITS
            or (rules.entropy and bootstrap.tree_weight(n_rows) > max(n_rows, bootstrap.n_draws, XLOGX_SIZE))
        )
        code_bytes = table.fine.dtype.itemsize
        by_position = self._wide or n_classes == 0
        key_type = np.uint32 if code_bytes <= 2 and (not by_position or largest <= 65536) else np.uint64
        codes = table.n_codes[table.categorical == 1]
        max_codes = int(codes.max(initial=0)) + 1
        in_cache = table.fine.nbytes + table.coarse.nbytes <= CACHE_BYTES
        self._by_node_up_to = BY_NODE_UP_TO if in_cache else BY_NODE_IN_LARGE_TABLE
        self._in_order_up_to = 0 if n_classes == 0 else IN_ORDER_UP_TO
        self._scratch_shape = (largest, key_type, n_classes, max_codes)
        self._local = threading.local()

        table_of_xlogx = np.zeros(1, np.int64)
        if rules.entropy:
            scale = entropy_scale(bootstrap, n_rows)
            if self._wide:
                table_of_xlogx[0] = scale
            else:
                size = bootstrap.tree_weight(n_rows) + 1
                if bootstrap.by_row is not None:  # trees weigh more or less than that
                    size = 1 << _heaviest(weights, largest).bit_length()
                table_of_xlogx = _xlogx(size, float(scale))
        self._kernel_rules = Rules(
            np.int64(rules.min_samples_leaf),
            np.int64(rules.min_weight),
            rules.entropy,
            table_of_xlogx,
        )

    def _scratch(self) -> Scratch:
        scratch: Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = make_scratch(*self._scratch_shape)
        return scratch

    def find(
        self,
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        order_key: NDArray[np.uint64],
        select_key: NDArray[np.uint64],
        counts: NDArray[np.int64],
        found: Found,
        whole: NDArray[np.float64],
        *,
        goes_on: bool = True,
    ) -> None:
        """Find the best split of each of some nodes, and their scores left whole.

        Parameters
        ----------
        start, end : int64 arrays
            Where the rows of the nodes begin and end.
        order_key, select_key : uint64 arrays
            By which a node's features are in order, and by which its candidates are drawn.
        counts : int64 array
            How many of the features are candidates; it is used up.
        found, whole : arrays
            Where what is found is put.
        goes_on : bool
            Whether to go on behind the candidates where none of them can split the node.
        """
        self._find(start, end, order_key, select_key, counts, found, whole, goes_on)
        if self._levels is not None:  # from coarser columns to the codes of the table
            column = found[1][found[1] >= 0]
            feature, shift = self._levels.source[column], self._levels.shift[column]
            cut = found[3][found[1] >= 0]
            by_cut = self._table.categorical[column] == 0
            found[3][found[1] >= 0] = np.where(by_cut, last_code(cut, self._n_codes[feature], shift), cut)
            found[1][found[1] >= 0] = feature

    def _find(
        self,
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        order_key: NDArray[np.uint64],
        select_key: NDArray[np.uint64],
        counts: NDArray[np.int64],
        found: Found,
        whole: NDArray[np.float64],
        goes_on: bool,
    ) -> None:
        sizes = end - start
        n_nodes = len(start)
        gathered = self._gather(start, end, whole)
        evaluate = self._evaluator(start, end, gathered)
        done = self._search_smallest(start, end, order_key, counts, gathered, found)
        counts[done] = 0

        n_large = int(counts[sizes > self._by_node_up_to].sum())
        pairs, spare = ([np.empty(n, kind) for kind in PAIR] for n in (max(int(counts.sum()), n_nodes), n_large))
        n_pairs = list_candidates(
            select_key,
            order_key,
            counts,
            sizes,
            self._feature_keys,
            self._by_node_up_to,
            self._in_order_up_to,
            *pairs,
            *spare,
        )
        self._coarsen(pairs, n_pairs, sizes)
        evaluate(pairs, n_pairs, found)
        if self._rules.whole_tree or not goes_on:
            return
        # where no candidate can split the node the search goes on in the node's order, as in scikit-learn
        tried = counts
        tried[done] = len(self._feature_keys)
        failed = np.flatnonzero((found[1] < 0) & (tried < len(self._feature_keys)))
        while len(failed):
            next_candidates(select_key, failed, tried, self._feature_keys, *pairs)
            self._coarsen(pairs, len(failed), sizes)
            evaluate(pairs, len(failed), found)
            tried[failed] += 1
            failed = failed[(found[1][failed] < 0) & (tried[failed] < len(self._feature_keys))]

    def find_twos(
        self, start: NDArray[np.int64], end: NDArray[np.int64], order_key: NDArray[np.uint64], found: Found
    ) -> None:
        """Find the splits of nodes of two rows of different classes; only if ``splits_two_rows_by_order``."""
        search_twos(
            self._columns, self._rows, self._weights, start, end, None, start, self._rules.entropy, order_key,
            self._feature_keys, *found,
        )  # fmt: skip

    def find_cuts(
        self, start: NDArray[np.int64], end: NDArray[np.int64], feature: NDArray[np.int32], found: Found
    ) -> None:
        """Find the best split of each of some nodes by one feature; only without ``min_cell``."""
        n = len(start)
        gathered = self._gather(start, end, np.empty(n))
        pairs: list[NDArray[Any]] = [np.arange(n, dtype=np.int32), feature, np.zeros(n, np.uint64)]
        self._evaluator(start, end, gathered)(pairs, n, found)

    def _coarsen(self, pairs: list[NDArray[Any]], n_pairs: int, sizes: NDArray[np.int64]) -> None:
        """Put the columns that are coarse enough for their nodes in the place of the candidates."""
        if self._levels is not None:
            node, feature = pairs[0][:n_pairs], pairs[1][:n_pairs]
            feature[:] = self._levels.columns_for(feature, sizes[node], self._rules.min_cell)

    def _search_smallest(
        self,
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        order_key: NDArray[np.uint64],
        counts: NDArray[np.int64],
        gathered: Gathered,
        found: Found,
    ) -> NDArray[np.bool_]:
        """Search the nodes of so few rows that their candidates need not be listed; returns which they are."""
        if not self._rules.splits_two_rows_by_order:
            return np.zeros(len(start), bool)
        sizes: NDArray[np.int64] = end - start
        first = gathered[1]
        payload = gathered[0] if self._n_classes == 0 else None
        if payload is not None and not self._table.categorical.any() and not self._table.has_missing.any():
            tiny_targets.search_tiny(
                self._columns, self._rows, self._weights, start, end, payload, first, counts, order_key,
                self._feature_keys, self._scratch(), *found[:4],
            )  # fmt: skip
            return sizes <= TINY
        twos = np.asarray(sizes == 2)
        if twos.any():
            search_twos(
                self._columns, self._rows, self._weights, start, end, payload, first, self._rules.entropy, order_key,
                self._feature_keys, *found[:4],
            )  # fmt: skip
        return twos

    def _gather(self, start: NDArray[np.int64], end: NDArray[np.int64], whole: NDArray[np.float64]) -> Gathered:
        """Gather the labels of some nodes' rows as the kernels take them, and put the nodes' scores into ``whole``."""
        n_nodes, n_rows = len(start), int((end - start).sum())
        first = np.empty(n_nodes, np.int64)
        if self._n_classes == 0:
            targets_of_rows, sums = np.empty(n_rows, np.float64), np.empty((n_nodes, 2), np.float64)
            targets.prepare_targets(
                self._rows, self._weights, self._labels, start, end, targets_of_rows, first, sums, whole
            )
            return targets_of_rows, first, sums
        payload: NDArray[Any] = np.empty(n_rows, np.int64 if self._wide else np.uint16)
        totals: NDArray[Any] = np.empty((n_nodes, self._n_classes), np.int64 if self._wide else np.int32)
        weight, square = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.int64)
        prepare = wide.prepare_wide if self._wide else class_keys.prepare
        prepare(
            self._rows, self._weights, self._labels, start, end, payload, first, totals, weight, square, whole,
            self._kernel_rules,
        )  # fmt: skip
        return payload, first, totals, weight, square

    def _evaluator(self, start: NDArray[np.int64], end: NDArray[np.int64], gathered: Gathered) -> Evaluate:
        """What searches pairs of these nodes and their candidates."""
        scratch = self._scratch()
        two = self._n_classes == 2
        rows: tuple[NDArray[Any], ...] = (self._rows,)
        work_space: tuple[Any, ...]
        if self._n_classes == 0:
            search, work_space = targets.search_targets, (scratch,)
            rows = (self._rows, self._weights)
        elif self._wide:
            search, work_space = wide.search_wide, (scratch,)
        else:
            search = classes.search_classes
            work_space = (
                scratch.sorting,
                scratch.groups.chosen,
                scratch.left,
                scratch.groups if two else None,
                None if two else scratch.hist_class,
                scratch.groups.hist_count,
                scratch.categories,
            )

        def evaluate(pairs: list[NDArray[Any]], n_pairs: int, found: Found) -> None:
            search(
                self._columns, *rows, start, end, *gathered, *pairs, n_pairs, self._kernel_rules, *work_space, *found
            )

        return evaluate

    def shift_of(self, feature: NDArray[np.int64], n_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many low bits of their codes features lack at nodes of so many rows."""
        if self._levels is None:
            return np.zeros(len(feature), np.int64)
        return np.asarray(self._levels.shift[self._levels.columns_for(feature, n_rows, self._rules.min_cell)])

    def cut_categories(
        self,
        nodes: NDArray[np.int64],
        feature: NDArray[np.int32],
        cut: NDArray[np.int64],
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        flags: NDArray[np.uint8],
        flag_start: NDArray[np.int64],
        sets: NDArray[np.uint8],
        set_start: NDArray[np.int64],
        spare: tuple[NDArray[np.uint32], NDArray[Any]],
        middle: NDArray[np.int64],
    ) -> None:
        """Carry out splits by categories; the order of each node's categories is found again from its labels.

        ``nodes`` says which of the open nodes; ``flag_start`` and ``set_start`` count by place in it.
        """
        payload, first, totals, *_ = self._gather(start[nodes], end[nodes], np.empty(len(nodes)))
        kernel = (
            targets.cut_categories_by_target
            if self._n_classes == 0
            else wide.cut_categories_wide
            if self._wide
            else class_keys.cut_categories
        )
        column = feature
        if self._levels is not None:
            column = feature.copy()
            column[nodes] = self._levels.columns_for(
                feature[nodes].astype(np.int64), (end - start)[nodes], self._rules.min_cell
            )
        kernel(
            self._columns, nodes, column, cut, self._rows, self._weights, start, end, payload, first, totals,
            flags, flag_start, sets, set_start, self._scratch().categories, *spare, middle,
        )  # fmt: skip
        if self._levels is not None:  # from cells to the codes of the table
            for k, f in enumerate(column[nodes].tolist()):
                shift, n_codes = int(self._levels.shift[f]), int(self._n_codes[self._levels.source[f]])
                own = sets[set_start[k] : set_start[k] + ((n_codes + 8) >> 3)]
                bits = np.unpackbits(own, bitorder="little")
                own[:] = np.packbits(bits[cells_of_codes(n_codes, shift)], bitorder="little")

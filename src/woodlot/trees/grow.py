"""A party's side of growing: the rows of all trees in flight, the search for splits, and the splits it has won.

One level of all trees::

    offers  = grower.find(counts)          the best split of my candidate features at every open node
    flags   = grower.apply(won)            where I won: which rows go left; feature and threshold stay here
    is_open = grower.split(mask, flags)    all splits of the level, mine and the others': the next level's nodes
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.coarsening import first_code, last_code
from woodlot.trees.encoding import EncodedTable
from woodlot.trees.forest import Splits, Structure, gather_sets
from woodlot.trees.kernels import cut, levels, rows
from woodlot.trees.kernels.search import Columns
from woodlot.trees.parallel import run_chunks
from woodlot.trees.rules import GrowthRules, SplitSides
from woodlot.trees.sampling import Bootstrap, draw_rows, tree_keys
from woodlot.trees.search import Found, SplitSearch
from woodlot.trees.skeleton import Skeleton

CHUNK_ROWS = 1 << 18
"""Nodes are searched in chunks of about this many rows: it bounds the work space of a thread."""
SERIAL_ROWS = 20_000
"""Below this many open rows threads cost more than they give."""


class BestSplits(NamedTuple):
    """Best split of one party at every open node (``feature`` -1: none), and the score of the node left whole."""

    score: NDArray[np.float64]
    feature: NDArray[np.int32]
    whole: NDArray[np.float64]


class LevelSides(NamedTuple):
    """What the splits of a level do, as one party knows it: ``kernels.levels.split_sides``."""

    place: NDArray[np.int64]
    """By open node: where the bits of its rows begin, this party's or the others'."""
    both: NDArray[np.int64]
    """Rows on the left and on the right of each split."""


@dataclass
class Won:
    """Splits of one level that stay with this party."""

    number: NDArray[np.int64]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float64]
    missing_left: NDArray[np.bool_]
    set_length: NDArray[np.int64]
    sets: NDArray[np.uint8]


class Grower:
    """Trees in flight at one party.

    Parameters
    ----------
    table : EncodedTable
        This party's columns.
    feature_keys : uint64 array
        Stable code of each column.
    labels : array
        Class codes (``n_classes > 0``) or fixed-point targets (int64, ``n_classes == 0``), one per row.
    seed : int
        Seed of the candidate order.
    """

    def __init__(
        self,
        table: EncodedTable,
        feature_keys: NDArray[np.uint64],
        labels: NDArray[Any],
        n_classes: int,
        rules: GrowthRules,
        bootstrap: Bootstrap,
        seed: int,
        trees: Sequence[int],
        n_jobs: int,
    ) -> None:
        self.table = table
        self.labels = labels
        self.n_classes = n_classes
        self.rules = rules
        self.n_jobs = n_jobs
        self.feature_keys = feature_keys
        self.skeleton = Skeleton(tree_keys(seed, trees))
        self.rows, self.weights, bounds = draw_rows(bootstrap, trees, labels, n_classes, n_jobs)
        self.start, self.end = bounds[:-1].copy(), bounds[1:].copy()
        self.root_sizes = self.end - self.start
        self._won: list[Won] = []
        self._columns = Columns(*(getattr(table, name) for name in Columns._fields))
        self._largest = int(self.root_sizes.max(initial=0))
        self._search = SplitSearch(
            table, feature_keys, labels, n_classes, rules, bootstrap, self.rows, self.weights, self._largest
        )
        self._local = threading.local()
        self._leaf_parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        self._close(np.arange(len(trees), dtype=np.int64))

    def _spare(self) -> tuple[NDArray[np.uint32], NDArray[Any]]:
        """Room of this thread for the rows and weights that go right."""
        spare: tuple[NDArray[np.uint32], NDArray[Any]] | None = getattr(self._local, "spare", None)
        if spare is None:
            room = self._largest + 1
            spare = self._local.spare = np.empty(room, np.uint32), np.empty(room, self.weights.dtype)
        return spare

    def _close(self, numbers: NDArray[np.int64], settled: NDArray[np.bool_] | None = None) -> None:
        """Decide which of the nodes just made stay open; the closed ones, unless settled, are remembered as leaves."""
        self.is_open = self._still_open()
        if settled is None:
            self._remember_leaves(numbers, ~self.is_open)
        else:
            self._remember_leaves(numbers, ~self.is_open & ~settled)
            self.is_open &= ~settled
        kept = self.skeleton.keep_open(self.is_open)
        self.start, self.end = self.start[kept], self.end[kept]
        self._middle = np.full(len(self.start), -1, np.int64)

    def _still_open(self) -> NDArray[np.bool_]:
        """Which of the nodes just made may be split."""
        is_open = np.zeros(len(self.start), np.uint8)
        may_split = self.skeleton.depth < self.rules.max_depth

        def work(chunk: slice) -> None:
            rows.close_nodes(
                self.rows, self.weights, self.labels, self.start[chunk], self.end[chunk], may_split,
                self.rules.min_samples_split, self.rules.min_samples_leaf, self.rules.min_weight, is_open[chunk],
            )  # fmt: skip

        run_chunks(work, self._chunks(self.end - self.start), self.n_jobs)
        return is_open.astype(bool)

    def _remember_leaves(self, numbers: NDArray[np.int64], is_leaf: NDArray[np.bool_]) -> None:
        # the rows of a closed node never move again, so its place in the array is all that must be kept
        leaves = np.flatnonzero(is_leaf)
        self._leaf_parts.append((numbers[leaves], self.start[leaves], self.end[leaves]))

    def _chunks(self, sizes: NDArray[np.int64]) -> list[slice]:
        """Cut the nodes into chunks of similar work."""
        n_nodes = len(sizes)
        total = int(sizes.sum())
        wanted = max(1, -(-total // CHUNK_ROWS), 4 * self.n_jobs if self.n_jobs > 1 and total > SERIAL_ROWS else 1)
        if n_nodes == 0 or wanted == 1:
            return [slice(0, n_nodes)] if n_nodes else []
        ends = np.searchsorted(np.cumsum(sizes), total * np.arange(1, wanted) // wanted, side="right")
        bounds = [0, *sorted({int(end) for end in ends} - {0, n_nodes}), n_nodes]
        return [slice(a, b) for a, b in pairwise(bounds)]

    def find(self, counts: NDArray[np.integer[Any]], searched: NDArray[np.bool_] | None = None) -> BestSplits:
        """The best split of this party's candidates at every open node.

        Parameters
        ----------
        counts : array
            How many of this party's features, the first in the node's order, are candidates at each open node.
        searched : bool array, optional
            At which open nodes to look; at the others nothing is offered. By default at all.
        """
        if searched is not None and not searched.all():
            return self._find_at(np.flatnonzero(searched), counts)
        n_open = len(self.start)
        best = np.full(n_open, -np.inf)
        feature = np.full(n_open, -1, np.int32)
        place = np.full(n_open, np.iinfo(np.uint64).max, np.uint64)
        self._cut = np.full(n_open, -1, np.int64)
        self._missing_left = np.zeros(n_open, np.uint8)
        self._feature = feature
        whole = np.empty(n_open)
        wanted = counts.astype(np.int64)

        def work(chunk: slice) -> None:
            found = best[chunk], feature[chunk], place[chunk], self._cut[chunk], self._missing_left[chunk]
            self._search_nodes(chunk, wanted[chunk], found, whole[chunk])

        run_chunks(work, self._chunks(self.end - self.start), self.n_jobs)
        return BestSplits(best, feature, whole)

    def _find_at(self, nodes: NDArray[np.int64], counts: NDArray[np.integer[Any]]) -> BestSplits:
        """The best splits at some of the open nodes only."""
        n = len(self.start)
        offers = BestSplits(np.full(n, -np.inf), np.full(n, -1, np.int32), np.zeros(n))
        self._cut = np.full(n, -1, np.int64)
        self._missing_left = np.zeros(n, np.uint8)
        self._feature = offers.feature

        def work(part: slice) -> None:
            chosen = nodes[part]
            m = len(chosen)
            found = np.full(m, -np.inf), np.full(m, -1, np.int32), np.full(m, np.iinfo(np.uint64).max, np.uint64)
            cuts, missing_left, whole = np.full(m, -1, np.int64), np.zeros(m, np.uint8), np.empty(m)
            self._search_nodes(chosen, counts[chosen].astype(np.int64), (*found, cuts, missing_left), whole)
            offers.score[chosen], offers.feature[chosen], offers.whole[chosen] = found[0], found[1], whole
            self._cut[chosen], self._missing_left[chosen] = cuts, missing_left

        run_chunks(work, self._chunks((self.end - self.start)[nodes]), self.n_jobs)
        return offers

    def _search_nodes(
        self,
        chosen: slice | NDArray[np.int64],
        counts: NDArray[np.int64],
        found: Found,
        whole: NDArray[np.float64],
    ) -> None:
        order_key = self.skeleton.key[chosen]
        select_key = self.skeleton.root_key[chosen] if self.rules.whole_tree else order_key
        self._search.find(self.start[chosen], self.end[chosen], order_key, select_key, counts, found, whole)

    def can_apply(self, won: NDArray[np.bool_]) -> bool:
        """Whether this party has offered a split at all these nodes."""
        return bool((self._cut[won] >= 0).all())

    def apply(self, won: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Carry out the splits this party has won; returns one flag per row of these nodes, 1 for left."""
        nodes = np.flatnonzero(won)
        sizes = (self.end - self.start)[nodes]
        flag_start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        flags = np.empty(int(flag_start[-1]), np.uint8)
        low = np.full(len(nodes), -1, np.int64)
        high = np.full(len(nodes), -1, np.int64)

        def work(chunk: slice) -> None:
            cut.cut_nodes(
                self._columns, nodes[chunk], self._feature, self._cut, self._missing_left, self.rows, self.weights,
                self.start, self.end, flags, flag_start[chunk], low[chunk], high[chunk], *self._spare(), self._middle,
            )  # fmt: skip

        run_chunks(work, self._chunks(sizes), self.n_jobs)
        feature = self._feature[nodes].astype(np.int64)
        if self.rules.min_cell:  # from codes that occur in the node to the bounds of their cells
            shift = self._search.shift_of(feature, sizes)
            low = last_code(low >> shift, self.table.n_codes[feature], shift)
            high = first_code(high >> shift, shift)
        set_length = np.where(self.table.categorical[feature] == 1, (self.table.n_codes[feature] + 8) >> 3, 0)
        sets = self._apply_categories(nodes, np.flatnonzero(set_length), flags, flag_start, set_length)
        self._won.append(
            Won(
                number=self.skeleton.frontier[nodes],
                feature=self._feature[nodes],
                threshold=self.table.thresholds(feature, low, high),
                missing_left=self._missing_left[nodes].astype(bool),
                set_length=set_length,
                sets=sets,
            )
        )
        return flags

    def apply_packed(self, won: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """As `apply`, with the flags packed eight to a byte, first bit lowest."""
        return np.packbits(self.apply(won), bitorder="little")

    def last_won(self) -> Won:
        """What `apply` has carried out last."""
        return self._won[-1]

    def repeat(self, nodes: NDArray[np.int64], flags: NDArray[np.uint8]) -> None:
        """Carry out splits that this party has kept from a former forest: one flag per row of these nodes, in order."""
        start, end, middle = self.start[nodes], self.end[nodes], np.full(len(nodes), -1, np.int64)
        rows.partition(self.rows, self.weights, start, end, flags, *self._spare(), middle)
        self._middle[nodes] = middle

    def _apply_categories(
        self,
        nodes: NDArray[np.int64],
        chosen: NDArray[np.int64],
        flags: NDArray[np.uint8],
        flag_start: NDArray[np.int64],
        set_length: NDArray[np.int64],
    ) -> NDArray[np.uint8]:
        """Carry out the splits by categories, which are ``chosen`` of ``nodes``; returns their sets."""
        set_start = np.cumsum(set_length) - set_length
        sets = np.zeros(int(set_length.sum()), np.uint8)

        def work(chunk: slice) -> None:
            some = chosen[chunk]
            self._search.cut_categories(
                nodes[some], self._feature, self._cut, self.start, self.end, flags, flag_start[some], sets,
                set_start[some], self._spare(), self._middle,
            )  # fmt: skip

        run_chunks(work, self._chunks((self.end - self.start)[nodes[chosen]]), self.n_jobs)
        return sets

    def rows_of_others(self, is_split: NDArray[np.bool_]) -> int:
        """How many flags this party must be told: one per row of the split nodes that it has not won."""
        return int((self.end - self.start)[is_split & (self._middle < 0)].sum())

    def has_carried_out(self, nodes: NDArray[np.bool_]) -> bool:
        """Whether this party has split all these nodes itself."""
        return bool((self._middle[nodes] >= 0).all())

    def has_won_only(self, is_split: NDArray[np.bool_]) -> bool:
        """Whether all that this party has carried out is among these splits."""
        return not ((self._middle >= 0) & ~is_split).any()

    def sides(self, is_split: NDArray[np.bool_], other_bits: NDArray[np.uint8]) -> SplitSides:
        """How many rows, and where a rule asks what weight, all splits of a level would send left and right.

        Nothing is moved yet. What others have split can be anything: look at it before `split`.

        Parameters
        ----------
        is_split : bool array
            As for `split`.
        other_bits : uint8 array
            Its flags, packed eight to a byte, first bit lowest: so they are counted in no time.
        """
        both = self._level_sides(is_split, other_bits).both
        if self.rules.min_weight <= 1:  # every row weighs as much
            return SplitSides(both, None)
        chosen = np.flatnonzero(is_split)
        start, end, told = self.start[chosen], self.end[chosen], self._middle[chosen] < 0
        sizes = end - start
        flags = np.repeat(np.tile(np.array([1, 0], np.uint8), len(both)), both.ravel())  # ours stand as they were split
        flags[np.repeat(told, sizes)] = np.unpackbits(other_bits, count=int(sizes[told].sum()), bitorder="little")
        first = np.cumsum(sizes) - sizes
        weights = self.weights[np.arange(len(flags)) + np.repeat(start - first, sizes)]
        heavy, whole = _sums_of(weights * flags, sizes), _sums_of(weights, sizes)
        return SplitSides(both, np.column_stack([heavy, whole - heavy]))

    def _level_sides(self, is_split: NDArray[np.bool_], other_bits: NDArray[np.uint8]) -> LevelSides:
        place, both = np.empty(len(self.start), np.int64), np.empty((int(is_split.sum()), 2), np.int64)
        levels.split_sides(is_split, self.start, self.end, self._middle, _words(other_bits), place, both)
        return LevelSides(place, both)

    def split(
        self,
        is_split: NDArray[np.bool_],
        other_flags: NDArray[np.uint8],
        settled: NDArray[np.bool_] | None = None,
    ) -> None:
        """Carry out all splits of a level; ``is_open`` then tells which of the children are open.

        Parameters
        ----------
        is_split : bool array
            Which open nodes are split; the others become leaves.
        other_flags : uint8 array
            One flag per row of the split nodes that other parties have won, in order.
        settled : bool array, optional
            Which of the children are known from a former forest, with all below them: they are not looked at again.
        """
        self._remember_leaves(self.skeleton.frontier, ~is_split)
        chosen = np.flatnonzero(is_split)
        start, end, middle = self.start[chosen], self.end[chosen], self._middle[chosen]
        sizes = np.where(middle < 0, end - start, 0)
        flag_start = np.concatenate([[0], np.cumsum(sizes)])

        def work(chunk: slice) -> None:
            flags = other_flags[flag_start[chunk.start] : flag_start[chunk.stop]]
            rows.partition(self.rows, self.weights, start[chunk], end[chunk], flags, *self._spare(), middle[chunk])

        run_chunks(work, self._chunks(sizes), self.n_jobs)
        children = self.skeleton.split(is_split)
        self.start = np.column_stack([start, middle]).ravel()
        self.end = np.column_stack([middle, end]).ravel()
        self._close(children, settled)

    def split_packed(self, is_split: NDArray[np.bool_], other_bits: NDArray[np.uint8], n_flags: int) -> None:
        """As `split`, with so many flags packed eight to a byte, first bit lowest."""
        self.split(is_split, np.unpackbits(other_bits, count=n_flags, bitorder="little"))

    def finish(self, pruned: NDArray[np.int64]) -> tuple[Structure, Splits, NDArray[np.int64]]:
        """The finished trees: their structure, this party's splits, and where each node stands.

        Parameters
        ----------
        pruned : int64 array
            Split nodes that become leaves after all.
        """
        self._remember_leaves(self.skeleton.frontier, np.ones(len(self.start), bool))
        structure, position = self.skeleton.finish(pruned)
        number = np.concatenate([np.empty(0, np.int64), *(won.number for won in self._won)])
        standing = position[number] >= 0
        if len(pruned):
            standing &= np.isin(number, pruned, invert=True)
        at_node = np.full(structure.n_nodes, -1, np.int64)
        at_node[position[number[standing]]] = np.flatnonzero(standing)
        order = at_node[at_node >= 0]

        def gather(parts: list[NDArray[Any]], kind: Any) -> NDArray[Any]:
            return np.concatenate([np.empty(0, kind), *parts])[order].astype(kind)

        lengths = np.concatenate([np.zeros(1, np.int64), *(won.set_length for won in self._won)])
        set_start, sets = gather_sets(
            np.cumsum(lengths), np.concatenate([_NO_SET, *(won.sets for won in self._won)]), order
        )
        splits = Splits(
            node=position[number[order]].astype(np.int32),
            feature=gather([won.feature for won in self._won], np.int32),
            threshold=gather([won.threshold for won in self._won], np.float64),
            missing_left=gather([won.missing_left for won in self._won], np.bool_),
            set_start=set_start,
            sets=sets,
        )
        return structure, splits, position

    def leaves(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The leaves before any pruning: number of the node, and where its rows begin and end."""
        number, start, end = (np.concatenate(parts) for parts in zip(*self._leaf_parts, strict=True))
        return number, start, end

    def class_entries(
        self, numbers: NDArray[Any], start: NDArray[np.int64], end: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """How many of the classes occur in each of some leaves; then, leaf after leaf, which, and their weights there.

        Parameters
        ----------
        numbers : array
            Class number of each row.
        start, end : int64 arrays
            Where the rows of the leaves begin and end.
        """
        chunks = self._chunks(end - start)
        entries = np.empty(len(start), np.int64)
        none = np.empty(0, np.int64)  # where everything below has stayed as it was, there is no leaf to tell of
        found = [(none, none)] * (len(chunks) or 1)

        def work(k: int) -> None:
            first, last = start[chunks[k]], end[chunks[k]]
            room = int(np.minimum(last - first, self.n_classes).sum())
            label, weight = np.empty(room, np.int64), np.empty(room, np.int64)
            seen = np.zeros(self.n_classes, np.int64)
            n = rows.class_entries(
                self.rows, self.weights, numbers, first, last, seen, entries[chunks[k]], label, weight
            )
            found[k] = label[:n], weight[:n]

        run_chunks(work, range(len(chunks)), self.n_jobs)
        label, weight = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return entries, label, weight

    def target_sums(
        self, values: NDArray[np.float64], start: NDArray[np.int64], end: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Weight, and weighted sum of the rows' values, of each of some leaves."""
        totals = np.zeros((len(start), 2))

        def work(chunk: slice) -> None:
            rows.target_totals(self.rows, self.weights, values, start[chunk], end[chunk], totals[chunk])

        run_chunks(work, self._chunks(end - start), self.n_jobs)
        return totals[:, 0].astype(np.int64), totals[:, 1]


def _words(bits: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Flags packed eight to a byte as whole words, with at least one bit to spare."""
    words = np.empty((len(bits) >> 3) + 1, np.uint64)
    words[-1] = 0
    words.view(np.uint8)[: len(bits)] = bits
    return words


def ones_by_node(bits: NDArray[np.uint8], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many flags of each node are set: packed eight to a byte, first bit lowest."""
    ones = np.empty(len(sizes), np.int64)
    rows.ones_by_node(_words(bits), sizes, ones)
    return ones


ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""How many bits of a byte are set."""


def _sums_of(numbers: NDArray[Any], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of numbers that stand together, so many at a time and at least one: less than 2**31 each."""
    if len(sizes) == 0:
        return np.empty(0, np.int64)
    return np.add.reduceat(numbers, np.cumsum(sizes) - sizes, dtype=np.uint32).astype(np.int64)


_NO_SET = np.empty(0, np.uint8)

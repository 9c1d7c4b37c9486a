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
from woodlot.trees.kernels.first_split import first_splitting
from woodlot.trees.kernels.search import Columns
from woodlot.trees.parallel import run_chunks
from woodlot.trees.rules import GrowthRules, SplitSides
from woodlot.trees.sampling import Bootstrap, TreeRows, draw_rows, tree_keys
from woodlot.trees.search import Found, SplitSearch
from woodlot.trees.skeleton import Skeleton

CHUNK_ROWS = 1 << 18
"""Nodes are searched in chunks of about this many rows: it bounds the work space of a thread."""
SERIAL_ROWS = 20_000
"""Below this many open rows threads cost more than they give."""


LeafPart = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Nodes that became leaves together: their numbers, and where their rows begin and end."""


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

    late_scores: NDArray[np.float64] = np.empty(0)
    """Of what `apply` has carried out last, the scores of the splits that `find_candidates` has offered without."""

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
        self.rows, self.weights, bounds = self._draw(bootstrap, trees)
        self.start, self.end = bounds[:-1].copy(), bounds[1:].copy()
        self.root_sizes = self.end - self.start
        self._won: list[Won] = []
        self._columns = Columns(*(getattr(table, name) for name in Columns._fields))
        self._largest = int(self.root_sizes.max(initial=0))
        self._search = SplitSearch(
            table, feature_keys, labels, n_classes, rules, bootstrap, self.rows, self.weights, self._largest
        )
        self._local = threading.local()
        self._leaf_parts: list[LeafPart] = []
        self._open_roots()

    def _draw(self, bootstrap: Bootstrap, trees: Sequence[int]) -> TreeRows:
        return draw_rows(bootstrap, trees, self.labels, self.n_classes, self.n_jobs)

    def _open_roots(self) -> None:
        self._close(np.arange(len(self.start), dtype=np.int64))

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
        # a new list: the former one may be another party's, too (`common_grow`)
        self._leaf_parts = [*self._leaf_parts, (numbers[leaves], self.start[leaves], self.end[leaves])]

    def _chunks(self, sizes: NDArray[np.int64]) -> list[slice]:
        """Cut the nodes into chunks of similar work.

        Several for each thread, so that none waits long for the last; but each takes the interpreter's lock for a while
        (docs/decisions/0053), so with many threads they are fewer.
        """
        n_nodes = len(sizes)
        total = int(sizes.sum())
        wanted = max(1, -(-total // CHUNK_ROWS), 2 * self.n_jobs + 4 if self.n_jobs > 1 and total > SERIAL_ROWS else 1)
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
        return self._find_open(counts, searched, goes_on=True)

    def _find_open(
        self, counts: NDArray[np.integer[Any]], searched: NDArray[np.bool_] | None, *, goes_on: bool
    ) -> BestSplits:
        """As `find`; ``goes_on``: also behind the candidates, where none of them can split the node."""
        if searched is not None and not searched.all():
            return self._find_at(np.flatnonzero(searched), counts, goes_on)
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
            self._search_nodes(chunk, wanted[chunk], found, whole[chunk], goes_on)

        run_chunks(work, self._chunks(self.end - self.start), self.n_jobs)
        return BestSplits(best, feature, whole)

    def find_candidates(self, counts: NDArray[np.integer[Any]], *, all_whole: bool) -> BestSplits:
        """As `find`, without the score of a split by a feature that is no candidate: it is -inf.

        Such a split counts only where no party has a candidate that can split the node. Its cut and its score are
        found by `apply`, if it wins. Only for rules that allow every split (``splits_two_rows_by_order``).

        Parameters
        ----------
        counts : array
            As for `find`.
        all_whole : bool
            Whether all nodes' scores left whole are wanted.
        """
        sizes = self.end - self.start
        twos = sizes == 2  # these need no candidates, and with classes no labels
        if all_whole:
            offers = self._find_open(counts, None, goes_on=False)
        else:
            offers = self._find_open(counts, (counts > 0) | (twos & (self.n_classes == 0)), goes_on=False)
            if self.n_classes:
                self._find_at_twos(np.flatnonzero(twos), offers)
        rest = np.flatnonzero((offers.feature < 0) & ~twos)
        first = np.empty(len(rest), np.int32)

        def work(chunk: slice) -> None:
            first_splitting(
                self._columns, self.rows, self.start, self.end, rest[chunk], self.skeleton.key, self.feature_keys,
                first[chunk],
            )  # fmt: skip

        run_chunks(work, self._chunks(sizes[rest]), self.n_jobs)
        offers.feature[rest] = first
        return offers

    def _find_at_twos(self, nodes: NDArray[np.int64], offers: BestSplits) -> None:
        """Find the first feature in order that can split each of some nodes of two rows of different classes."""

        def work(chunk: slice) -> None:
            some = nodes[chunk]
            found = offers.score[some], offers.feature[some], np.empty(len(some), np.uint64), self._cut[some]
            self._search.find_twos(self.start[some], self.end[some], self.skeleton.key[some], found)
            offers.score[some], offers.feature[some], self._cut[some] = found[0], found[1], found[3]

        run_chunks(work, self._chunks((self.end - self.start)[nodes]), self.n_jobs)

    def _find_cuts(self, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Find the best cut of the features that were offered without one; returns the scores."""
        scores = np.full(len(nodes), -np.inf)

        def work(chunk: slice) -> None:
            some = nodes[chunk]
            m = len(some)
            feature, place = np.full(m, -1, np.int32), np.full(m, np.iinfo(np.uint64).max, np.uint64)
            cuts, missing_left = np.full(m, -1, np.int64), np.zeros(m, np.uint8)
            found = scores[chunk], feature, place, cuts, missing_left
            self._search.find_cuts(self.start[some], self.end[some], self._feature[some], found)
            self._cut[some], self._missing_left[some] = cuts, missing_left

        run_chunks(work, self._chunks((self.end - self.start)[nodes]), self.n_jobs)
        return scores

    def _find_at(self, nodes: NDArray[np.int64], counts: NDArray[np.integer[Any]], goes_on: bool) -> BestSplits:
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
            self._search_nodes(chosen, counts[chosen].astype(np.int64), (*found, cuts, missing_left), whole, goes_on)
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
        goes_on: bool,
    ) -> None:
        order_key = self.skeleton.key[chosen]
        select_key = self.skeleton.root_key[chosen] if self.rules.whole_tree else order_key
        nodes = self.start[chosen], self.end[chosen], order_key, select_key, counts
        self._search.find(*nodes, found, whole, goes_on=goes_on)

    def can_apply(self, won: NDArray[np.bool_]) -> bool:
        """Whether this party has offered a split at all these nodes."""
        return bool((self._feature[won] >= 0).all())

    def apply(self, won: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Carry out the splits this party has won; returns one flag per row of these nodes, 1 for left."""
        nodes = np.flatnonzero(won)
        self.late_scores = self._find_cuts(nodes[self._cut[nodes] < 0])
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
        heavy, whole = sums_of(weights * flags, sizes), sums_of(weights, sizes)
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
        structure, position = self._finished_shape(pruned)
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

    def _finished_shape(self, pruned: NDArray[np.int64]) -> tuple[Structure, NDArray[np.int64]]:
        return self.skeleton.finish(pruned)

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


def sums_of(numbers: NDArray[Any], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of numbers that stand together, so many at a time and at least one: less than 2**31 each."""
    if len(sizes) == 0:
        return np.empty(0, np.int64)
    return np.add.reduceat(numbers, np.cumsum(sizes) - sizes, dtype=np.uint32).astype(np.int64)


_NO_SET = np.empty(0, np.uint8)

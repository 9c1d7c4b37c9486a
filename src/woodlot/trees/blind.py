"""A party's side of growing without labels: which sums of others' numbers would tell how good its splits are.

The party lists every split that it may make at the open nodes, and for each the rows on one side of it. Somebody adds
up what belongs to these rows, somebody else judges the sums and tells which splits are the best; neither is done here.
One level of all trees::

    level = grower.list_cuts(counts, shuffle)   splits of my candidates at every open node, and the sums they need
    ...                                         somebody judges them
    features = grower.choose(ties)              the best of every node; then ``apply`` and ``split`` as ever

A split whose sums follow from those of the node above needs fewer: what goes to a larger child is what was in its
parent less what goes to the smaller child. Rows are added up in the order of their codes, from one end, so that the sum
of one cut is the beginning of the next one's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.encoding import EncodedTable
from woodlot.trees.grow import Grower
from woodlot.trees.kernels.hashing import places
from woodlot.trees.rules import GrowthRules
from woodlot.trees.sampling import Bootstrap

Shuffle = Callable[[int], NDArray[np.uint64]]
"""So many secret random numbers."""

NOTHING = -1
"""Stands for the sum of no rows."""


@dataclass(frozen=True, eq=False)
class Chain:
    """Sums over rows of one node in the order of one column.

    Attributes
    ----------
    items : int64 array
        Positions of the rows in the grower's arrays.
    stops : int64 array
        Sums are wanted of the first so many rows, ascending.
    apart : int64 array
        Positions of rows that are added up by themselves: those whose value is missing.
    with_apart : bool array
        Which of the sums are with those.
    weight : int
        What the rows of the node weigh together.
    """

    items: NDArray[np.int64]
    stops: NDArray[np.int64]
    apart: NDArray[np.int64]
    with_apart: NDArray[np.bool_]
    weight: int


@dataclass(frozen=True, eq=False)
class Level:
    """What a party tells of its splits at the open nodes of a level.

    Attributes
    ----------
    chains : list of Chain
        All sums, chain after chain.
    order : int64 array
        In which order the sums are told: a secret.
    n_cuts : int64 array
        Number of splits at each open node; they follow node after node, shuffled within each.
    weight : int64 array
        What the rows on the summed side of each split weigh.
    plus, minus : int64 arrays
        The split's sum is that of ``plus`` less that of ``minus``: numbers of the splits of the level before, then of
        the sums as told; ``minus`` may be NOTHING.
    kind : uint8 array
        By open node: 0 no split, 1 splits of candidates, 2 of the first other feature that can split it.
    """

    chains: list[Chain]
    order: NDArray[np.int64]
    n_cuts: NDArray[np.int64]
    weight: NDArray[np.int64]
    plus: NDArray[np.int64]
    minus: NDArray[np.int64]
    kind: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class _Column:
    """The rows of a node by one column: how many have each code, and what they weigh."""

    count: NDArray[np.int64]
    weight: NDArray[np.int64]
    codes: NDArray[np.int64]
    """Code of each row."""
    missing: int
    """Rows without a value."""
    missing_weight: int

    @classmethod
    def of(cls, codes: NDArray[Any], weights: NDArray[Any], n_codes: int) -> _Column:
        codes = codes.astype(np.int64)
        count = np.bincount(codes, minlength=n_codes + 1)
        weight = np.bincount(codes, weights, minlength=n_codes + 1).astype(np.int64)
        return cls(
            np.cumsum(count[:n_codes]), np.cumsum(weight[:n_codes]), codes, int(count[n_codes]), int(weight[n_codes])
        )

    def cuts(self, rules: GrowthRules) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """All splits that the rules allow: last code on the left, whether missing values go left, weight on the left.

        In the order in which equals are preferred.
        """
        n, whole = len(self.codes), self.missing_weight + (int(self.weight[-1]) if len(self.weight) else 0)
        present = np.flatnonzero(np.diff(self.count, prepend=0))
        code = np.concatenate([present, present[:-1] if self.missing else present[:0]])
        missing_left = np.arange(len(code)) >= len(present)
        left = self.count[code] + np.where(missing_left, self.missing, 0)
        weight = self.weight[code] + np.where(missing_left, self.missing_weight, 0)
        allowed = (left >= rules.min_samples_leaf) & (n - left >= rules.min_samples_leaf)
        allowed &= (weight >= rules.min_weight) & (whole - weight >= rules.min_weight)
        return code[allowed], missing_left[allowed], weight[allowed]

    def side(
        self, code: NDArray[np.int64], missing_left: NDArray[np.bool_], leftward: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """How many rows with a value are on the summed side of these cuts, and whether those without are too."""
        values = self.count[code]
        if leftward:
            values = len(self.codes) - self.missing - values
        return values, (missing_left != leftward) & (self.missing > 0)

    def order(self, leftward: bool) -> NDArray[np.int64]:
        """The rows with a value, by their codes from the end where adding up begins."""
        order = np.argsort(self.codes, kind="stable")[: len(self.codes) - self.missing]
        return order[::-1] if leftward else order


@dataclass(eq=False)
class _Wanted:
    """Sums that are wanted of one node and column."""

    column: _Column
    leftward: bool
    values: list[NDArray[np.int64]] = field(default_factory=list)
    with_missing: list[NDArray[np.bool_]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Cuts:
    """The splits of one open node by one column."""

    node: int
    feature: int
    leftward: bool
    code: NDArray[np.int64]
    missing_left: NDArray[np.bool_]
    weight: NDArray[np.int64]
    plus: NDArray[np.int64]
    """Number of the split of the node above, NOTHING where the sum is told as it is."""
    source: tuple[int, int]
    """Node (among all that were just made) and column of which sums are told."""
    at: int
    """Which of the lists of that node and column."""


class BlindGrower(Grower):
    """Trees in flight at a party that has no labels.

    Parameters
    ----------
    is_open : bool array
        Which roots the label holder has left open.
    others
        As for `Grower`.
    """

    def __init__(
        self,
        table: EncodedTable,
        feature_keys: NDArray[np.uint64],
        rules: GrowthRules,
        bootstrap: Bootstrap,
        seed: int,
        trees: Sequence[int],
        n_jobs: int,
        is_open: NDArray[np.bool_],
    ) -> None:
        self._told: NDArray[np.bool_] | None = is_open
        super().__init__(
            table, feature_keys, np.zeros(table.n_rows, np.uint8), 2, rules, bootstrap, seed, trees, n_jobs
        )  # fmt: skip
        self._listed: list[_Cuts] = []
        self._parents = np.full(len(trees), NOTHING, np.int64)
        self._chosen_from(np.empty(0, np.int64), np.empty(0, np.int64))

    def _still_open(self) -> NDArray[np.bool_]:
        self._all_start, self._all_end = self.start, self.end
        told, self._told = self._told, None
        return np.zeros(len(self.start), bool) if told is None else told

    def expect(self, is_open: NDArray[np.bool_]) -> None:
        """The children of the next ``split`` that the label holder has left open; without being told it is none."""
        self._told = is_open

    def split(
        self,
        is_split: NDArray[np.bool_],
        other_flags: NDArray[np.uint8],
        settled: NDArray[np.bool_] | None = None,
    ) -> None:
        """As ``Grower.split``."""
        self._parents = np.repeat(np.flatnonzero(is_split), 2)
        super().split(is_split, other_flags, settled)

    # --- what can be split ---

    def list_cuts(self, counts: NDArray[np.integer[Any]], shuffle: Shuffle) -> Level:
        """All splits of this party's candidates at every open node, and the sums that tell how good they are.

        Parameters
        ----------
        counts : array
            How many of this party's features, the first in the node's order, are candidates at each open node.
        shuffle : callable
            Secret random numbers: they decide the order in which splits and sums are told, and of which side.
        """
        before = self._by_parent()
        made = np.flatnonzero(self.is_open)
        kind = np.zeros(len(made), np.uint8)
        wanted: dict[tuple[int, int], _Wanted] = {}
        listed: list[_Cuts] = []
        for node, number in enumerate(made.tolist()):
            columns, kind[node] = self._splitting_columns(node, int(counts[node]))
            for f, column in columns.items():
                above = before.get((int(self._parents[number]), f))
                listed.append(self._want(node, number, f, column, above, wanted, shuffle))
        return self._shuffled(listed, wanted, kind, shuffle)

    def _by_parent(self) -> dict[tuple[int, int], tuple[_Cuts, NDArray[np.int64]]]:
        """The splits of the level before by node and column, with their numbers as they were told."""
        place = np.empty(len(self._slot_of), np.int64)
        place[self._slot_of] = np.arange(len(place))
        ends = np.cumsum([0, *(len(cuts.code) for cuts in self._listed)])
        return {(cuts.node, cuts.feature): (cuts, place[ends[i] : ends[i + 1]]) for i, cuts in enumerate(self._listed)}

    def _splitting_columns(self, node: int, n_candidates: int) -> tuple[dict[int, _Column], int]:
        """The candidates that can split a node, or the first other feature that can; and which of both."""
        whole_tree = self.rules.whole_tree
        order = self._places((self.skeleton.root_key if whole_tree else self.skeleton.key)[node])
        found: dict[int, _Column] = {}
        for i, f in enumerate(np.argsort(order).tolist()):
            if i >= n_candidates and (found or whole_tree):
                break
            column = self._column(f, int(self.start[node]), int(self.end[node]))
            if len(column.cuts(self.rules)[0]):
                found[f] = column
                if i >= n_candidates:
                    return found, 2
        return found, 1 if found else 0

    def _places(self, key: np.uint64) -> NDArray[np.uint64]:
        """Place of every feature in the order of a node."""
        found = np.empty(len(self.feature_keys), np.uint64)
        places(np.full(len(found), key), self.feature_keys, found)
        return found

    def _column(self, f: int, start: int, end: int) -> _Column:
        codes = self.table.fine[f, self.rows[start:end]]
        return _Column.of(codes, self.weights[start:end], int(self.table.n_codes[f]))

    def _want(
        self,
        node: int,
        number: int,
        f: int,
        column: _Column,
        above: tuple[_Cuts, NDArray[np.int64]] | None,
        wanted: dict[tuple[int, int], _Wanted],
        shuffle: Shuffle,
    ) -> _Cuts:
        """The splits of a node by a column; the sums that they need are noted."""
        code, missing_left, weight = column.cuts(self.rules)
        leftward = bool(shuffle(1)[0] & np.uint64(1)) if above is None else above[0].leftward
        if leftward:
            weight = int(self.weights[self.start[node] : self.end[node]].sum()) - weight
        plus = np.full(len(code), NOTHING, np.int64)
        source = number
        if above is not None and (self._size(number), number) > (self._size(number ^ 1), number ^ 1):
            cuts, slots = above
            width = 2 * int(self.table.n_codes[f]) + 2
            of_code = np.full(width, NOTHING, np.int64)
            of_code[2 * cuts.code + cuts.missing_left] = slots
            plus = of_code[2 * code + missing_left]
            source, column = number ^ 1, self._column(f, *self._bounds(number ^ 1))
        want = wanted.setdefault((source, f), _Wanted(column, leftward))
        values, with_missing = want.column.side(code, missing_left, leftward)
        want.values.append(values)
        want.with_missing.append(with_missing)
        return _Cuts(node, f, leftward, code, missing_left, weight, plus, (source, f), len(want.values) - 1)

    def _bounds(self, number: int) -> tuple[int, int]:
        return int(self._all_start[number]), int(self._all_end[number])

    def _size(self, number: int) -> int:
        return int(self._all_end[number] - self._all_start[number])

    # --- what is told of it ---

    def _shuffled(
        self,
        listed: list[_Cuts],
        wanted: dict[tuple[int, int], _Wanted],
        kind: NDArray[np.uint8],
        shuffle: Shuffle,
    ) -> Level:
        """Equal sums once, in a secret order; the splits of each node in another."""
        chains: list[Chain] = []
        sum_of: dict[tuple[int, int], NDArray[np.int64]] = {}
        n_sums = 0
        for (number, f), want in wanted.items():
            key = 2 * np.concatenate(want.values) + np.concatenate(want.with_missing)
            distinct, which = np.unique(key, return_inverse=True)
            empty = int(distinct[0] == 0)  # no row on that side: nothing is added up
            sum_of[number, f] = np.where(which < empty, NOTHING, n_sums + which - empty)
            n_sums += len(distinct) - empty
            chains.append(self._chain(number, f, want, distinct[empty:]))
        order = np.argsort(shuffle(n_sums), kind="stable")
        place = np.full(n_sums + 1, NOTHING, np.int64)  # one more, so that NOTHING points at something
        place[order] = np.arange(n_sums)

        def join(parts: list[NDArray[Any]]) -> NDArray[np.int64]:
            return np.concatenate([np.empty(0, np.int64), *parts])

        told = []
        for cuts in listed:
            lengths = [len(values) for values in wanted[cuts.source].values]
            start = sum(lengths[: cuts.at])
            sums = sum_of[cuts.source][start : start + lengths[cuts.at]]
            told.append(np.where(sums == NOTHING, NOTHING, len(self._slot_of) + place[sums]))
        node = join([np.full(len(cuts.code), cuts.node) for cuts in listed])
        plus, own = join([cuts.plus for cuts in listed]), join(told)
        plus, minus = np.where(plus == NOTHING, own, plus), np.where(plus == NOTHING, NOTHING, own)
        slots = np.lexsort((shuffle(len(node)), node))
        n_cuts = np.bincount(node, minlength=len(kind))
        self._listed = listed
        self._chosen_from(slots, n_cuts)
        weight = join([cuts.weight for cuts in listed])
        return Level(chains, order, n_cuts, weight[slots], plus[slots], minus[slots], kind)

    def _chain(self, number: int, f: int, want: _Wanted, distinct: NDArray[np.int64]) -> Chain:
        start, end = self._bounds(number)
        order = want.column.order(want.leftward)
        apart = np.flatnonzero(want.column.codes == self.table.n_codes[f])
        weight = int(self.weights[start:end].sum())
        return Chain(start + order, distinct >> 1, start + apart, (distinct & 1).astype(bool), weight)

    # --- what was judged ---

    def _chosen_from(self, slots: NDArray[np.int64], n_cuts: NDArray[np.int64]) -> None:
        self._slot_of = slots
        self._first_slot = np.concatenate([[0], np.cumsum(n_cuts)]).astype(np.int64)
        self._feature = np.full(len(self.start), -1, np.int32)
        self._cut = np.full(len(self.start), -1, np.int64)
        self._missing_left = np.zeros(len(self.start), np.uint8)

    def n_cuts(self) -> NDArray[np.int64]:
        """How many splits were told of at each open node."""
        return np.diff(self._first_slot)

    def choose(self, n_ties: NDArray[np.int64], ties: NDArray[np.int64]) -> NDArray[np.int32]:
        """The feature that is to split each node, -1 for none, from the splits that were judged equally good.

        Parameters
        ----------
        n_ties : int64 array
            How many were, by open node; 0 where this party does not split.
        ties : int64 array
            Their places among the node's, node after node.
        """
        feature = np.concatenate([np.empty(0, np.int64), *(np.full(len(c.code), c.feature) for c in self._listed)])
        code = np.concatenate([np.empty(0, np.int64), *(c.code for c in self._listed)])
        missing_left = np.concatenate([np.empty(0, bool), *(c.missing_left for c in self._listed)])
        node = np.repeat(np.arange(len(n_ties)), n_ties)
        cut = self._slot_of[self._first_slot[node] + ties]
        self._chosen_from(self._slot_of, self.n_cuts())
        ends = np.cumsum(n_ties)
        for k in np.flatnonzero(n_ties).tolist():
            tied = cut[ends[k] - n_ties[k] : ends[k]]
            order = self._places(self.skeleton.key[k])
            # the feature first in the node's order; missing values rather to the right; the lowest code
            best = tied[np.lexsort((code[tied], missing_left[tied], order[feature[tied]]))[0]]
            self._feature[k], self._cut[k], self._missing_left[k] = feature[best], code[best], missing_left[best]
        return self._feature

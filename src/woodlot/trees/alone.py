r"""Trees that one holder of rows grows alone: from the roots, or from the leaves of trees that others have begun.

Growing on is growing with the first splits given. All trees go down together, level by level, so that a node's level
is its depth: a node that has a given split sends its rows where that says, any other is searched for a split::

    given     o            level 0   given split
            /   \
           o     x         level 1   given split | leaf: searched for a split, and so is all below it
          / \
         x   x             level 2   leaves: searched

A node whose rows need no more splits (pure, too few, too deep) is not followed further: nothing below it would be
split either. What was given below it stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn, NumericColumn
from woodlot.data.tables import Table
from woodlot.trees.encoding import EncodedTable, encode
from woodlot.trees.forest import Splits, Structure, join_splits, join_structures
from woodlot.trees.grow import Grower
from woodlot.trees.parallel import run_chunks
from woodlot.trees.predict import Walker, row_chunks
from woodlot.trees.ranks import Columns, Ranker
from woodlot.trees.rules import GrowthRules
from woodlot.trees.sampling import Bootstrap, feature_key

BYTES_PER_ROW = 8
"""Upper estimate of what a drawn row of a tree in flight takes: row number, weight, and a flag per level."""
DEFAULT_MEMORY = 2 * 1024**3
"""Bytes for the trees that grow at the same time; the trees do not depend on it."""
_ROUTED_AT_ONCE = 1 << 17


@dataclass(frozen=True, eq=False)
class WholeTrees:
    """Trees with all their questions: what anybody can send rows down. Their leaves are empty."""

    structure: Structure
    splits: Splits

    @classmethod
    def single_leaves(cls, n_trees: int) -> WholeTrees:
        """Trees that nobody has grown yet: each is one leaf."""
        structure = Structure(np.arange(n_trees + 1, dtype=np.int64), np.full(n_trees, -1, np.int32))
        return cls(structure, NO_SPLITS)

    def take(self, first: int, stop: int) -> WholeTrees:
        """Some trees that stand together."""
        s = self.splits
        low, high = int(self.structure.offset[first]), int(self.structure.offset[stop])
        a, b = np.searchsorted(s.node, [low, high])
        return WholeTrees(
            take_structure(self.structure, first, stop),
            Splits(
                node=(s.node[a:b] - low).astype(np.int32),
                feature=s.feature[a:b],
                threshold=s.threshold[a:b],
                missing_left=s.missing_left[a:b],
                set_start=s.set_start[a : b + 1] - s.set_start[a],
                sets=s.sets[s.set_start[a] : s.set_start[b]],
            ),
        )

    def leaves_of(self, columns: Columns, n_rows: int, n_jobs: int) -> NDArray[np.int32]:
        """The node at which each row ends in each tree, shape (n_rows, n_trees)."""
        ranker = Ranker.of(self.splits)
        ranker.check(columns, n_rows)
        walker = Walker(self.structure, ranker.questions)
        node_of_leaf = np.flatnonzero(self.structure.right < 0).astype(np.int32)
        ends = np.empty((n_rows, self.structure.n_trees), np.int32)

        def one(rows: slice) -> None:
            codes = ranker.block_codes(columns, rows)
            for trees, leaf in walker.leaves(codes, rows.stop - rows.start):
                ends[rows, trees] = node_of_leaf[leaf[:, : rows.stop - rows.start].T]

        run_chunks(one, row_chunks(n_rows, n_jobs), n_jobs)
        return ends


def take_structure(structure: Structure, first: int, stop: int) -> Structure:
    """The shape of some trees that stand together."""
    offset = structure.offset[first : stop + 1]
    right = structure.right[offset[0] : offset[-1]]
    return Structure(offset - offset[0], np.where(right >= 0, right - offset[0], -1).astype(np.int32))


def join_trees(parts: Sequence[WholeTrees]) -> WholeTrees:
    """Trees of all parts, one after the other."""
    shifts = np.cumsum([0, *(part.structure.n_nodes for part in parts)]).tolist()
    return WholeTrees(
        join_structures([part.structure for part in parts]),
        join_splits([part.splits for part in parts], shifts[:-1]),
    )


@dataclass(frozen=True, eq=False)
class Field:
    """What one holder grows trees on.

    Attributes
    ----------
    columns : list of arrays
        Its columns as prediction takes them: float32 numbers, or int32 codes of categories.
    codes : EncodedTable
        The same for the search of splits.
    feature_keys : uint64 array
        Stable code of each column.
    labels : array
        Class codes (``n_classes > 0``) or fixed-point targets (int64, ``n_classes == 0``).
    n_classes : int
        Number of classes, all of which need not occur; 0 for targets.
    """

    columns: list[NDArray[Any]]
    codes: EncodedTable
    feature_keys: NDArray[np.uint64]
    labels: NDArray[Any]
    n_classes: int

    @classmethod
    def of(
        cls, table: Table, labels: NDArray[Any], n_classes: int, max_bins: int | None = None, n_jobs: int = 1
    ) -> Field:
        """Prepare a table; the codes of its categories stay as they are."""
        return cls(
            columns=[prediction_column(column) for column in table.columns],
            codes=encode(table, max_bins=max_bins, n_jobs=n_jobs),
            feature_keys=np.array([feature_key(name) for name in table.names], np.uint64),
            labels=labels,
            n_classes=n_classes,
        )

    @property
    def n_rows(self) -> int:
        return len(self.labels)


def prediction_column(column: NumericColumn | CategoryColumn) -> NDArray[Any]:
    """A column as prediction takes it; missing values of categories have the code after the last."""
    if isinstance(column, NumericColumn):
        return column.values
    return np.where(column.codes < 0, np.int32(len(column.categories)), column.codes).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Growth:
    """How trees grow: the rules, how many features are tried at a node, the rows of each tree, and the seed."""

    rules: GrowthRules
    n_candidates: int
    bootstrap: Bootstrap
    seed: int
    """Of the order in which features are tried."""
    n_jobs: int = 1
    memory_limit: int = DEFAULT_MEMORY

    def batches(self, trees: range, n_rows: int) -> list[range]:
        """Trees that grow together: as many as the memory allows."""
        together = max(1, self.memory_limit // (BYTES_PER_ROW * max(n_rows, 1)))
        return [trees[i : i + together] for i in range(0, len(trees), together)]


@dataclass(frozen=True, eq=False)
class LeafEntries:
    """What ended in the leaves, sparse: entries of node, output, and weight; for targets also the weighted sum."""

    node: NDArray[np.int64]
    output: NDArray[np.int64]
    weight: NDArray[np.int64]
    total: NDArray[np.float64]


def grow_alone(
    field: Field, growth: Growth, trees: range, values: NDArray[np.float64] | None = None
) -> tuple[WholeTrees, LeafEntries]:
    """Grow trees from their roots.

    Parameters
    ----------
    field : Field
        Rows, one or more.
    growth : Growth
        How.
    trees : range
        Their numbers in the forest, from which their randomness follows.
    values : float64 array, optional
        Of a regression: the targets that the leaves' sums are made of.

    Returns
    -------
    WholeTrees, LeafEntries
        The trees, and what the drawn rows left in their leaves.
    """
    parts, totals, first_node = [], [], 0
    for batch in growth.batches(trees, field.n_rows):
        grower = _grower(field, growth, batch)
        _grow_down(grower, field, growth, WholeTrees.single_leaves(len(batch)))
        structure, splits, position = grower.finish(_NONE)
        number, start, end = grower.leaves()
        if values is None:
            entries, output, weight = grower.class_entries(grower.labels, start, end)
            number, total = np.repeat(number, entries), np.empty(0)
        else:
            weight, total = grower.target_sums(values, start, end)
            output = np.zeros(len(number), np.int64)
        totals.append(LeafEntries(first_node + position[number], output, weight, total))
        parts.append(WholeTrees(structure, splits))
        first_node += structure.n_nodes
    return join_trees(parts), _join_totals(totals)


def grow_on(field: Field, growth: Growth, trees: range, given: WholeTrees) -> WholeTrees:
    """Grow given trees further at their leaves.

    Parameters
    ----------
    field : Field
        Rows; with none, the trees stay as they are.
    growth : Growth
        How; ``max_depth`` counts from the roots of the given trees.
    trees : range
        Their numbers in the forest, from which their randomness follows.
    given : WholeTrees
        As many trees.
    """
    if field.n_rows == 0:
        return given
    parts = []
    for batch in growth.batches(trees, field.n_rows):
        begun = given.take(batch.start - trees.start, batch.stop - trees.start)
        grower = _grower(field, growth, batch)
        visited = _grow_down(grower, field, growth, begun)
        structure, splits, position = grower.finish(_NONE)
        at = np.empty(structure.n_nodes, np.int64)
        at[position] = visited
        parts.append(_merge(begun, WholeTrees(structure, splits), at))
    return join_trees(parts)


def _grower(field: Field, growth: Growth, trees: range) -> Grower:
    return Grower(
        field.codes,
        field.feature_keys,
        field.labels,
        field.n_classes,
        growth.rules,
        growth.bootstrap,
        growth.seed,
        trees,
        growth.n_jobs,
    )


def _grow_down(grower: Grower, field: Field, growth: Growth, given: WholeTrees) -> NDArray[np.int64]:
    """Grow to the end; returns for every node, by number, which given node it is (-1: it is new)."""
    right = given.structure.right.astype(np.int64)
    router = _Router(field, given)
    visited = [given.structure.offset[:-1]]
    at = visited[0][grower.is_open]
    while len(at):
        routed = (at >= 0) & (right[at] >= 0)
        is_split = routed.copy()
        if not routed.all():
            offers = grower.find(np.where(routed, 0, growth.n_candidates))
            won = ~routed & (offers.feature >= 0)
            grower.apply(won)
            is_split |= won
        if not is_split.any():
            break
        flags = router.flags(grower, np.flatnonzero(routed), at[routed], growth.n_jobs)
        grower.split(is_split, flags)
        children = np.full((int(is_split.sum()), 2), -1, np.int64)
        follows = routed[is_split]
        children[follows] = np.column_stack([at[routed] + 1, right[at[routed]]])
        visited.append(children.ravel())
        at = visited[-1][grower.is_open]
    return np.concatenate(visited)


class _Router:
    """Sends rows of a field down given splits."""

    def __init__(self, field: Field, given: WholeTrees) -> None:
        self._splits = given.splits
        self._question = np.cumsum(given.structure.right >= 0) - 1
        self._table = field.codes
        self._columns = field.columns

    def flags(
        self, grower: Grower, nodes: NDArray[np.int64], given: NDArray[np.int64], n_jobs: int
    ) -> NDArray[np.uint8]:
        """One flag per row of these open nodes, 1 for left, by the splits of the given nodes."""
        start, sizes = grower.start[nodes], (grower.end - grower.start)[nodes]
        ends = np.cumsum(sizes)
        flags = np.empty(int(sizes.sum()), np.uint8)
        question = self._question[given]
        # by column, so that one column at a time is in the cache
        order = np.argsort(self._splits.feature[question], kind="stable")
        cuts = np.searchsorted(np.cumsum(sizes[order]), np.arange(_ROUTED_AT_ONCE, len(flags), _ROUTED_AT_ONCE))
        bounds = np.unique([0, *cuts.tolist(), len(order)]).tolist()

        def work(chunk: tuple[int, int]) -> None:
            some = order[chunk[0] : chunk[1]]
            within = np.arange(int(sizes[some].sum())) - np.repeat(np.cumsum(sizes[some]) - sizes[some], sizes[some])
            rows = grower.rows[np.repeat(start[some], sizes[some]) + within]
            goes_left = self._goes_left(rows, question[some], sizes[some])
            flags[np.repeat((ends - sizes)[some], sizes[some]) + within] = goes_left

        run_chunks(work, list(pairwise(bounds)), n_jobs)
        return flags

    def _goes_left(
        self, rows: NDArray[np.uint32], question: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """The sides of some rows at questions in the order of their columns."""
        s = self._splits
        feature = s.feature[question]
        row_ends = np.cumsum(sizes)
        left = np.empty(len(rows), np.bool_)
        changes = [0, *(np.flatnonzero(np.diff(feature)) + 1).tolist(), len(feature)]
        for a, b in pairwise(changes):
            if a == b:
                continue
            f = int(feature[a])
            span = slice(int(row_ends[a] - sizes[a]), int(row_ends[b - 1]))
            if self._table.categorical[f]:
                code = self._columns[f][rows[span]].astype(np.int64)
                first = np.repeat(s.set_start[question[a:b]], sizes[a:b])
                left[span] = s.sets[first + (code >> 3)] >> (code & 7).astype(np.uint8) & 1
                continue
            value = self._columns[f][rows[span]].astype(np.float64)
            left[span] = value <= np.repeat(s.threshold[question[a:b]], sizes[a:b])
            if self._table.has_missing[f]:
                left[span] |= np.isnan(value) & np.repeat(s.missing_left[question[a:b]], sizes[a:b])
        return left


def _merge(given: WholeTrees, grown: WholeTrees, at: NDArray[np.int64]) -> WholeTrees:
    """The given trees with what has grown at their leaves.

    ``grown`` follows a given tree only where rows needed it. ``at`` has the given node behind each of its nodes: these
    ascend in preorder, and the given nodes between one and the next hang below the first.
    """
    n_given = given.structure.n_nodes
    met = np.flatnonzero(at >= 0)
    below = np.diff(np.append(at[met], n_given))
    size = np.ones(grown.structure.n_nodes, np.int64)
    size[met] = below
    place = np.cumsum(size) - size
    place_of_given = np.repeat(place[met] - at[met], below) + np.arange(n_given)
    right = np.full(int(size.sum()), -1, np.int32)
    for structure, places in ((grown.structure, place), (given.structure, place_of_given)):
        inner = np.flatnonzero(structure.right >= 0)
        right[places[inner]] = places[structure.right[inner]]
    return WholeTrees(
        Structure(np.append(place, len(right))[grown.structure.offset], right),
        join_splits([_moved(grown.splits, place), _moved(given.splits, place_of_given)], [0, 0]),
    )


def _moved(splits: Splits, place: NDArray[np.int64]) -> Splits:
    return Splits(
        node=place[splits.node].astype(np.int32),
        feature=splits.feature,
        threshold=splits.threshold,
        missing_left=splits.missing_left,
        set_start=splits.set_start,
        sets=splits.sets,
    )


def _join_totals(parts: Sequence[LeafEntries]) -> LeafEntries:
    return LeafEntries(
        node=np.concatenate([part.node for part in parts]),
        output=np.concatenate([part.output for part in parts]),
        weight=np.concatenate([part.weight for part in parts]),
        total=np.concatenate([part.total for part in parts]),
    )


NO_SPLITS = Splits(
    node=np.empty(0, np.int32),
    feature=np.empty(0, np.int32),
    threshold=np.empty(0),
    missing_left=np.empty(0, np.bool_),
    set_start=np.zeros(1, np.int64),
    sets=np.empty(0, np.uint8),
)
_NONE = np.empty(0, np.int64)

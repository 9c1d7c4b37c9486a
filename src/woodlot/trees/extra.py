"""Extremely randomised trees, level by level: the client's rows, and the coordinator's growing trees.

A client only counts: `NodeRows` knows which rows are in which open node. All choices are the coordinator's:
`GrowingTrees` draws the candidates of the open nodes, is told which of them won, and becomes whole trees in the end.

What is drawn at a node is a hash of the seed, the tree, the node's path and the column's name. So the trees follow
from the counts alone, whoever has the rows and in whatever order nodes are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn
from woodlot.data.tables import Table
from woodlot.trees.alone import WholeTrees
from woodlot.trees.forest import Splits, Structure, gather_sets
from woodlot.trees.kernels import extra as kernels
from woodlot.trees.kernels.extra import Facts, Questions
from woodlot.trees.kernels.hashing import child_keys
from woodlot.trees.kernels.rows import preorder
from woodlot.trees.parallel import run_chunks
from woodlot.trees.sampling import feature_key, tree_keys

LEAF, WAITS, SPLITS = 0, 1, 2
"""What becomes of an open node: a leaf, the same node asked again, or two children."""

ATTEMPTS = 6
"""How often a node is asked before it becomes a leaf because no candidate could split it."""

Categories = Sequence[tuple[str, ...] | None]


def set_sizes(categories: Categories) -> NDArray[np.int64]:
    """Bytes of a set on each column: one bit per category, one for missing values; 0 on numbers."""
    return np.array([0 if names is None else len(names) // 8 + 1 for names in categories], np.int64)


def make_questions(
    feature: NDArray[np.int32],
    threshold: NDArray[np.float64],
    missing_left: NDArray[np.uint8],
    sets: NDArray[np.uint8],
    sizes: NDArray[np.int64],
) -> Questions:
    """Put questions together as kernels take them; the length of each set follows from its feature.

    Raises
    ------
    ValueError
        If the parts do not belong together, or a feature does not exist.
    """
    if not len(feature) == len(threshold) == len(missing_left):
        raise ValueError("questions have parts of different lengths")
    if len(feature) and not -1 <= int(feature.min()) <= int(feature.max()) < len(sizes):
        raise ValueError("a question is on a column that does not exist")
    lengths = np.where(feature >= 0, sizes[feature], 0)
    set_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    if int(set_start[-1]) != len(sets):
        raise ValueError("the sets do not fit the questions")
    numeric = (lengths == 0) & (feature >= 0)
    if not np.isfinite(threshold[numeric]).all():
        raise ValueError("a threshold is not a number")
    return Questions(feature, threshold, missing_left, set_start, sets)


def take_questions(questions: Questions, places: NDArray[np.int64]) -> Questions:
    """Some questions, in this order."""
    start, sets = gather_sets(questions.set_start, questions.sets, places)
    return Questions(
        questions.feature[places], questions.threshold[places], questions.missing_left[places], start, sets
    )


# --- client ---


def value_matrix(table: Table) -> NDArray[np.float32]:
    """Columns as rows of a matrix; categories by their codes, NaN where missing."""
    values = np.empty((len(table.columns), table.n_rows), np.float32)
    for row, column in zip(values, table.columns, strict=True):
        if isinstance(column, CategoryColumn):
            row[:] = np.where(column.codes < 0, np.float32(np.nan), column.codes.astype(np.float32))
        else:
            row[:] = column.values
    return values


@dataclass(frozen=True, eq=False)
class Frontier:
    """Open nodes: where their rows stand, of which tree they are, how deep, and how often they have waited."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    tree: NDArray[np.int64]
    depth: NDArray[np.int64]
    waited: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    def take(self, places: Any) -> Frontier:
        """Some of them, in this order."""
        return Frontier(
            self.start[places], self.end[places], self.tree[places], self.depth[places], self.waited[places]
        )


class NodeRows:
    """A client's rows of all trees, partitioned by node.

    Parameters
    ----------
    values : float32 array (columns, rows)
        From `value_matrix`.
    n_trees : int
        Every tree has every row.
    n_jobs : int
        Threads.
    """

    def __init__(self, values: NDArray[np.float32], n_trees: int, n_jobs: int = 1) -> None:
        self.values = values
        self.n_jobs = n_jobs
        n_rows = values.shape[1]
        self.rows = np.tile(np.arange(n_rows, dtype=np.uint32), n_trees)
        start: NDArray[np.int64] = np.arange(n_trees, dtype=np.int64) * n_rows
        none = np.zeros(n_trees, np.int64)
        self.roots = Frontier(start, start + n_rows, np.arange(n_trees, dtype=np.int64), none, none)

    def advance(self, frontier: Frontier, fate: NDArray[np.uint8], questions: Questions) -> Frontier:
        """Split the nodes whose fate it is, by these questions in the order of the nodes.

        Rows only change places within their node, so the old frontier stays valid.

        Returns
        -------
        Frontier
            What waits and what has come of splits, in the order of the nodes.
        """
        split = fate == SPLITS
        chosen = np.where(split, np.cumsum(split) - 1, -1)
        middle = frontier.end.copy()

        def work(nodes: range) -> None:
            kernels.split_rows(
                self.values,
                self.rows,
                frontier.start,
                frontier.end,
                questions,
                chosen,
                nodes.start,
                nodes.stop,
                middle,
            )

        run_chunks(work, self._chunks(frontier), self.n_jobs)
        copies = np.repeat(np.arange(len(frontier)), np.choose(fate, [0, 1, 2]))
        is_right = np.concatenate([[False], copies[1:] == copies[:-1]]) if len(copies) else np.zeros(0, np.bool_)
        is_left = split[copies] & ~is_right
        return Frontier(
            np.where(is_right, middle[copies], frontier.start[copies]),
            np.where(is_left, middle[copies], frontier.end[copies]),
            frontier.tree[copies],
            frontier.depth[copies] + split[copies],
            np.where(split[copies], 0, frontier.waited[copies] + 1),
        )

    def count(
        self, frontier: Frontier, questions: Questions, width: int, n_cells: int, kernel: Any, *labels: NDArray[Any]
    ) -> NDArray[np.int64]:
        """What each of ``width`` questions per node sends left, by one of the kernels; (nodes, width, cells)."""
        counts = np.zeros((len(frontier), width, n_cells), np.int64)

        def work(nodes: range) -> None:
            kernel(
                self.values,
                self.rows,
                frontier.start,
                frontier.end,
                questions,
                *labels,
                nodes.start,
                nodes.stop,
                counts,
            )

        run_chunks(work, self._chunks(frontier), self.n_jobs)
        return counts

    def ranges(
        self, frontier: Frontier, feature: NDArray[np.int32], width: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Smallest and largest value of each asked feature at each node, NaN where there is none."""
        low, high = np.empty(len(feature)), np.empty(len(feature))
        kernels.value_ranges(self.values, self.rows, frontier.start, frontier.end, feature, width, low, high)
        return low, high

    def _chunks(self, frontier: Frontier) -> list[range]:
        """Neighbouring nodes with about as many rows, some for each thread."""
        if len(frontier) == 0:
            return []
        parts = 1 if self.n_jobs == 1 else 4 * self.n_jobs
        ends = np.cumsum(frontier.end - frontier.start + 1)
        bounds = np.searchsorted(ends, np.linspace(0, int(ends[-1]), parts + 1)[1:-1])
        places = [0, *np.unique(bounds[bounds > 0]).tolist(), len(frontier)]
        return [range(a, b) for a, b in pairwise(places) if a < b]


# --- coordinator ---


@dataclass(frozen=True, eq=False)
class Axes:
    """Where thresholds are drawn: on each column an axis through ascending public knots, all steps equally long.

    Attributes
    ----------
    names : tuple of str
        The columns.
    knots : tuple of arrays
        Of each column, from its lowest to its highest; empty for categories, and where nothing can be asked.
    categories : sequence
        Of each column, None for numbers.
    """

    names: tuple[str, ...]
    knots: tuple[NDArray[np.float64], ...]
    categories: Categories

    @cached_property
    def tops(self) -> NDArray[np.float64]:
        """Length of each axis; -1 for categories, 0 for a column that cannot be asked."""
        return np.array(
            [
                max(0, len(knots) - 1) if names is None else -min(1, len(names))
                for knots, names in zip(self.knots, self.categories, strict=True)
            ],
            np.float64,
        )

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of a set on each column."""
        return set_sizes(self.categories)

    @cached_property
    def feature_keys(self) -> NDArray[np.uint64]:
        return np.array([feature_key(name) for name in self.names], np.uint64)

    @cached_property
    def _category_keys(self) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        names = [() if categories is None else categories for categories in self.categories]
        start = np.concatenate([[0], np.cumsum([len(some) for some in names])]).astype(np.int64)
        return start, np.array([feature_key(category) for some in names for category in some], np.uint64)

    def questions(
        self, feature: NDArray[np.int32], position: NDArray[np.float64], draw: NDArray[np.uint64]
    ) -> Questions:
        """Thresholds at these positions, and random sets."""
        lengths = np.where(feature >= 0, self.sizes[feature], 0)
        set_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        sets = np.zeros(int(set_start[-1]), np.uint8)
        kernels.draw_sets(draw, feature, *self._category_keys, set_start, sets)
        missing_left = ((draw >> np.uint64(32)) & np.uint64(1)).astype(np.uint8)
        return Questions(feature, self._values(feature, position), missing_left, set_start, sets)

    def _values(self, feature: NDArray[np.int32], position: NDArray[np.float64]) -> NDArray[np.float64]:
        first = np.concatenate([[0], np.cumsum([len(knots) for knots in self.knots])])[:-1]
        flat = np.concatenate([*self.knots, np.zeros(1)])
        values = np.full(len(feature), np.nan)
        numeric = np.flatnonzero((feature >= 0) & (self.tops[feature] > 0))
        of = feature[numeric]
        step = np.minimum(np.floor(position[numeric]), self.tops[of] - 1).astype(np.int64)
        low, high = flat[first[of] + step], flat[first[of] + step + 1]
        values[numeric] = low + (high - low) * (position[numeric] - step)
        return values


@dataclass(eq=False)
class Drawn:
    """The candidates of the open nodes, ``width`` at each."""

    width: int
    questions: Questions
    position: NDArray[np.float64]

    @property
    def any_at(self) -> NDArray[np.bool_]:
        """Whether there is a candidate at each node."""
        return np.asarray((self.questions.feature.reshape(-1, self.width) >= 0).any(axis=1))

    def part(self, nodes: range) -> Questions:
        """The candidates of some neighbouring nodes."""
        return take_questions(self.questions, np.arange(nodes.start * self.width, nodes.stop * self.width))

    def take(self, nodes: NDArray[np.int64]) -> Drawn:
        """The candidates of some nodes."""
        places = (nodes[:, None] * self.width + np.arange(self.width)).ravel()
        return Drawn(self.width, take_questions(self.questions, places), self.position[places])

    def between(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> Drawn:
        """The same columns, with positions from 0 to 1 between these ends; where there are none, no candidate."""
        asked = self.questions
        numeric = np.diff(asked.set_start) == 0
        threshold = np.where(numeric, low + (high - low) * self.position, np.nan)
        feature = np.where(numeric & np.isnan(threshold), np.int32(-1), asked.feature)
        return Drawn(self.width, asked._replace(feature=feature, threshold=threshold), self.position)


class _FactLists:
    """What has been released of the values at nodes; see the kernels. The lists only grow."""

    def __init__(self) -> None:
        self._n = 0
        self.entries = _fact_room(1024)

    def add(
        self,
        head: NDArray[np.int64],
        place: NDArray[np.int64],
        feature: NDArray[np.int32],
        at: NDArray[np.float64],
        upper: NDArray[np.bool_],
    ) -> None:
        """Put facts before those that the lists of some open nodes have already."""
        needed = self._n + len(place)
        if needed > len(self.entries.next):
            larger = _fact_room(2 * needed)
            for old, new in zip(self.entries, larger, strict=True):
                new[: self._n] = old[: self._n]
            self.entries = larger
        kernels.add_facts(place, feature, at, upper.astype(np.uint8), head, self.entries, self._n)
        self._n = needed


def _fact_room(n: int) -> Facts:
    return Facts(np.empty(n, np.int64), np.empty(n, np.int32), np.empty(n), np.empty(n, np.uint8))


class GrowingTrees:
    """Trees while they grow, all of them at once.

    Attributes
    ----------
    nodes : int64 array
        Numbers of the open nodes, at first the roots.
    depth, tree : int64 array
        Depth and tree of each open node.
    """

    def __init__(self, axes: Axes, n_trees: int, seed: int, *, keeps_facts: bool = True) -> None:
        self.axes = axes
        self.n_trees = n_trees
        self.keeps_facts = keeps_facts
        self.nodes: NDArray[np.int64] = np.arange(n_trees, dtype=np.int64)
        self.tree = self.nodes
        self.depth = np.zeros(n_trees, np.int64)
        self._attempts = np.zeros(n_trees, np.int64)
        self._keys = tree_keys(seed, range(n_trees))
        self._n_nodes = n_trees
        self._head = np.full(n_trees, -1, np.int64)
        self._facts = _FactLists()
        self._asked: list[tuple[NDArray[np.int64], NDArray[np.int64], Questions]] = []

    def draw(self, width: int) -> Drawn:
        """Candidates of the open nodes."""
        k = len(self.nodes) * width
        feature, position, draw = np.full(k, -1, np.int32), np.zeros(k), np.zeros(k, np.uint64)
        axes = self.axes
        kernels.draw_questions(
            self._keys,
            self._attempts,
            width,
            axes.feature_keys,
            axes.tops,
            self._head,
            self._facts.entries,
            feature,
            position,
            draw,
        )
        return Drawn(width, axes.questions(feature, position, draw), position)

    def close(self, is_open: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Make leaves of open nodes; returns which places stay open."""
        kept = np.flatnonzero(is_open)
        self.nodes, self.depth, self.tree = self.nodes[kept], self.depth[kept], self.tree[kept]
        self._attempts, self._keys, self._head = self._attempts[kept], self._keys[kept], self._head[kept]
        return kept

    def learn_empty(self, drawn: Drawn, n_left: NDArray[Any], n_right: NDArray[Any]) -> None:
        """Note candidates that left a side empty: the node's values all lie on the other one."""
        if not self.keeps_facts:
            return
        numeric = (drawn.questions.feature >= 0) & (np.diff(drawn.questions.set_start) == 0)
        empty = numeric & ((n_left.ravel() == 0) | (n_right.ravel() == 0))
        places = np.flatnonzero(empty)
        upper = n_right.ravel()[places] == 0
        feature, at = drawn.questions.feature[places], drawn.position[places]
        self._facts.add(self._head, places // drawn.width, feature, at, upper)

    def decide(self, drawn: Drawn, best: NDArray[np.int64], may_wait: bool) -> tuple[NDArray[np.uint8], Questions]:
        """Split every open node by its best candidate; -1: it waits for another attempt, or is a leaf.

        Returns
        -------
        fate : uint8 array
            Of each open node: `LEAF`, `WAITS` or `SPLITS`.
        questions : Questions
            Of those that split. The open nodes are then what waits and the children, in the order of the nodes.
        """
        waits = (best < 0) & (self._attempts + 1 < ATTEMPTS) & may_wait
        fate = np.where(best >= 0, SPLITS, np.where(waits, WAITS, LEAF)).astype(np.uint8)
        split = np.flatnonzero(fate == SPLITS)
        chosen = split * drawn.width + best[split]
        questions = take_questions(drawn.questions, chosen)
        self._grow(fate, split, questions, drawn.position[chosen])
        return fate, questions

    def _grow(
        self, fate: NDArray[np.uint8], split: NDArray[np.int64], questions: Questions, position: NDArray[np.float64]
    ) -> None:
        parents = self.nodes[split]
        children = self._n_nodes + np.arange(2 * len(split), dtype=np.int64)
        self._n_nodes += len(children)
        keys = np.empty(len(children), np.uint64)
        child_keys(self._keys[split], keys)
        self._asked.append((parents, children[::2], questions))
        copies = np.repeat(np.arange(len(fate)), np.choose(fate, [0, 1, 2]))
        is_child = fate[copies] == SPLITS
        nodes, key, head = self.nodes[copies], self._keys[copies], self._head[copies]
        nodes[is_child], key[is_child] = children, keys
        if self.keeps_facts:
            numeric = np.flatnonzero(np.diff(questions.set_start) == 0)
            places = np.flatnonzero(is_child).reshape(-1, 2)[numeric]
            for side in (0, 1):
                is_left = np.full(len(numeric), side == 0)
                self._facts.add(head, places[:, side], questions.feature[numeric], position[numeric], is_left)
        self.nodes, self._keys, self._head, self.tree = nodes, key, head, self.tree[copies]
        self.depth = np.where(is_child, self.depth[copies] + 1, self.depth[copies])
        self._attempts = np.where(is_child, 0, self._attempts[copies] + 1)

    def finish(self) -> tuple[WholeTrees, NDArray[np.int64]]:
        """The whole trees, and where each node stands in them."""
        left, position = np.full((2, self._n_nodes), -1, np.int64)
        offset = np.zeros(self.n_trees + 1, np.int64)
        right = np.full(self._n_nodes, -1, np.int32)
        for nodes, children, _ in self._asked:
            left[nodes] = children
        preorder(left, self.n_trees, position, offset, right)
        parents = np.concatenate([np.empty(0, np.int64), *(nodes for nodes, _, _ in self._asked)])
        order = np.argsort(position[parents], kind="stable")
        asked = take_questions(_join([questions for _, _, questions in self._asked]), order)
        splits = Splits(
            node=position[parents][order].astype(np.int32),
            feature=asked.feature,
            threshold=asked.threshold,
            missing_left=asked.missing_left.astype(np.bool_),
            set_start=asked.set_start,
            sets=asked.sets,
        )
        return WholeTrees(Structure(offset, right), splits), position


def _join(parts: Sequence[Questions]) -> Questions:
    lengths = np.concatenate([np.empty(0, np.int64), *(np.diff(part.set_start) for part in parts)])
    return Questions(
        np.concatenate([np.empty(0, np.int32), *(part.feature for part in parts)]),
        np.concatenate([np.empty(0), *(part.threshold for part in parts)]),
        np.concatenate([np.empty(0, np.uint8), *(part.missing_left for part in parts)]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([np.empty(0, np.uint8), *(part.sets for part in parts)]),
    )

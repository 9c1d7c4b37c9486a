"""Shapley values of a forest's answers, from the sides that rows take at all nodes: exact, path-dependent TreeSHAP.

Whoever has the shape of the trees, the answers and weights of the leaves, and the column of each node can compute them;
thresholds and values are not needed. So the owners of columns tell sides, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.forest import Leaves, Splits, Structure
from woodlot.trees.kernels.reach import Tests
from woodlot.trees.kernels.settle import TreesShape, measure_trees
from woodlot.trees.kernels.shapley import LANES, Edges, Quadrature, add_shapley, answer_sides, link_edges, settle_sides
from woodlot.trees.parallel import effective_jobs, run_chunks
from woodlot.trees.predict import Vote, answers_of
from woodlot.trees.ranks import Columns, Ranker, n_blocks, writable
from woodlot.trees.wire import row_words

Words = NDArray[np.uint64]

_SAME_SUM = 1e-12
"""Rounding of the sum of a leaf's probabilities."""


class SideTeller:
    """A holder's questions, prepared to tell the sides of rows at all of its nodes.

    Parameters
    ----------
    splits : Splits
        The questions.
    """

    def __init__(self, splits: Splits) -> None:
        self._ranker = Ranker.of(splits)
        q = self._ranker.questions
        self._tests = Tests(q.word, q.set_start, q.sets, q.n_numeric)

    def answer(self, columns: Columns, known: NDArray[np.bool_] | None, n_rows: int, rows: slice) -> Words:
        """Bit r of ``[block, question]``: row 64 block + r of ``rows`` goes right there; 0 for rows that are not known.

        Parameters
        ----------
        columns : sequence of arrays
            The holder's table: float32 columns of numbers, int32 columns of category codes.
        known : array of bool or None
            Which rows of the table it has; None: all.
        n_rows : int
            Length of the columns.
        rows : slice
            Which rows to answer for.
        """
        self._ranker.check(columns, n_rows)
        asked = rows.stop - rows.start
        words = row_words(asked, None if known is None else known[rows])
        out = np.empty((len(words), len(self._tests.word)), np.uint64)
        answer_sides(self._tests, self._ranker.block_codes(columns, rows), self._ranker.questions.n_slots, words, out)
        return out


@dataclass(frozen=True, eq=False)
class ShapleyValues:
    """Answers for some rows, divided among columns."""

    values: NDArray[np.float64]
    """By row, place and output."""
    outputs: NDArray[np.float64]
    """What the forest answers, by row and output: the floats of a prediction."""
    uncertain: NDArray[np.bool_]
    """Rows that took both ways somewhere."""


class ForestShapley:
    """A forest, prepared to explain any number of rows.

    Parameters
    ----------
    structure : Structure
        The shape of the trees.
    leaves : Leaves
        What the leaves answer, and their training weights.
    feature : array of int32
        The column of each node, -1 at leaves.
    owner : array of int16
        The party of each node, -1 at leaves.
    place : array of int
        To which of the results each column's value is added: columns with the same place are added up.
    n_parties : int
        How many parties there are.
    vote : {"soft", "majority"}
        How the trees' answers become the forest's.
    """

    def __init__(
        self,
        structure: Structure,
        leaves: Leaves,
        feature: NDArray[np.int32],
        owner: NDArray[np.int16],
        place: NDArray[np.int64],
        n_parties: int,
        vote: Vote = "soft",
    ) -> None:
        n = structure.n_nodes
        self._structure, self._leaves, self._n_parties = structure, leaves, n_parties
        self._offset, self._right = writable(structure.offset), writable(structure.right)
        self._leaf, self._place = writable(structure.leaf), writable(np.asarray(place, np.int32))
        left, right = np.ones(n), np.zeros(n)
        depth = measure_trees(self._right, self._leaf, writable(leaves.weight), left, right)
        owner = writable(owner.astype(np.int16, copy=False))
        self._edges = Edges(
            np.ones(n), np.full(n, -1, np.int32), np.zeros(n, np.int16), np.zeros(n, np.bool_),
            np.zeros(n, np.int32), np.zeros(n, np.int32),
        )  # fmt: skip
        distinct = np.zeros(structure.n_trees, np.int64)
        columns = writable(feature.astype(np.int32, copy=False))
        link_edges(self._offset, self._right, columns, owner, left, right, self._edges, distinct)
        self._points = np.maximum(-(-distinct // 2), 1)
        self._rule = _rules(int(self._points.max(initial=1)))
        self._votes = answers_of(leaves, vote)
        self._shape = TreesShape(
            offset=self._offset,
            jump=np.where(structure.right >= 0, structure.right - np.arange(n), 0).astype(np.int32),
            leaf=self._leaf,
            owner=owner,
            share_left=left,
            share_right=right,
            max_nodes=int(np.diff(structure.offset).max(initial=1)),
            max_depth=int(depth),
        )

    @cached_property
    def _answers(self) -> NDArray[np.float64]:
        """What leaves answer, ``[leaf, output]``."""
        leaves, n_leaves = self._leaves, len(self._leaves.weight)
        dense = np.zeros((n_leaves, leaves.n_outputs))
        if self._votes.majority:
            dense[np.arange(n_leaves), leaves.top] = 1.0
        else:
            dense[np.repeat(np.arange(n_leaves), np.diff(leaves.start)), leaves.output] = leaves.value
        return dense

    @cached_property
    def base(self) -> NDArray[np.float64]:
        """What the forest answers where no column is known, by output: the mean over the training's weight."""
        shares = self._edges.share.copy()
        # a node stands behind its parent: level by level the shares of the way to it are there
        for level in range(1, int(self._edges.level.max(initial=0)) + 1):
            at = np.flatnonzero(self._edges.level == level)
            shares[at] *= shares[self._parents[at]]
        leaf = self._right < 0
        return np.asarray(shares[leaf] @ self._answers / self._structure.n_trees)

    @cached_property
    def _parents(self) -> NDArray[np.int64]:
        parents = np.zeros(self._structure.n_nodes, np.int64)
        inner = np.flatnonzero(self._right >= 0)
        parents[inner + 1] = parents[self._right[inner]] = inner
        return parents

    def explain(self, sides: Words, known: Words, n_rows: int, n_jobs: int | None = None) -> ShapleyValues:
        """Divide the answers for some rows among the columns.

        Parameters
        ----------
        sides : array of uint64, shape (n_blocks, n_nodes)
            Bit r of ``[block, node]``: row 64 block + r goes right there.
        known : array of uint64, shape (n_parties, n_blocks)
            The rows that each party has.
        n_rows : int
            How many rows.
        n_jobs : int or None
            Threads, as in scikit-learn.
        """
        blocks, valid = n_blocks(n_rows), row_words(n_rows, None)
        if sides.shape != (blocks, self._structure.n_nodes) or known.shape != (self._n_parties, blocks):
            raise ValueError(f"Sides and known rows must be of {n_rows} rows at all nodes and parties.")
        n_outputs = self._leaves.n_outputs
        # where probabilities add up to 1, the values of the last class are those of the others, with the other sign
        explained = n_outputs - 1 if n_outputs > 1 and np.ptp(self._answers.sum(axis=1)) < _SAME_SUM else n_outputs
        answers = np.ascontiguousarray(self._answers[:, :explained])
        n_places = int(self._place.max(initial=-1)) + 1
        values = np.empty((n_rows, n_places, n_outputs))
        outputs, uncertain = np.zeros((n_rows, n_outputs)), np.zeros(n_rows, np.bool_)

        def one(block: int) -> None:
            rows = slice(64 * block, min(64 * block + LANES, n_rows))
            found, own = np.zeros((n_places, explained, LANES)), known[:, block : block + 1]
            self._add(answers, writable(sides[block]), writable(own[:, 0]), found)
            part = found.transpose(2, 0, 1)[: rows.stop - rows.start] / self._structure.n_trees
            values[rows, :, :explained] = part
            if n_outputs > explained:
                values[rows, :, explained] = -part.sum(axis=2)
            leaf = np.empty((self._structure.n_trees, LANES), np.int32)
            block_sides, block_valid = writable(sides[block : block + 1]), valid[block : block + 1]
            out, doubts = outputs[rows], uncertain[rows]
            settle_sides(self._shape, self._votes, block_sides, writable(own), block_valid, leaf, out, doubts)

        run_chunks(one, range(blocks), effective_jobs(n_jobs))
        return ShapleyValues(values, outputs / self._structure.n_trees, uncertain)

    def _add(self, answers: NDArray[np.float64], sides: Words, known: Words, out: NDArray[np.float64]) -> None:
        add_shapley(
            self._offset, self._right, self._edges, answers, self._leaf, self._place, self._points, self._rule,
            sides, known, out,
        )  # fmt: skip


def _rules(most: int) -> Quadrature:
    """Gauss's rules with up to ``most`` points, on (0, 1)."""
    point, weight = np.full((most + 1, most), 0.5), np.zeros((most + 1, most))
    for n in range(1, most + 1):
        x, w = np.polynomial.legendre.leggauss(n)
        point[n, :n], weight[n, :n] = (x + 1) / 2, w / 2
    return Quadrature(point, weight)

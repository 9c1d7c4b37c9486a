"""Prediction where one holder has the complete forest.

The answer of a forest is the mean of its trees' answers, added in tree order for each row: every way to
predict, here or over a federation, gives the same floats. Of boosted trees the mean is a score of each class
(`Leaves.link`), and the answer its softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.forest import Leaves, Splits, Structure
from woodlot.trees.kernels.walk import (
    JUMP_BIT,
    MAX_JUMP,
    MAX_SET_BYTES,
    MAX_SLOTS,
    SET_BIT,
    SHIFT_BIT,
    SLOT_BIT,
    LeafAnswers,
    add_answers,
    walk,
    walk_numbers,
)
from woodlot.trees.parallel import effective_jobs, run_chunks
from woodlot.trees.ranks import Codes, Columns, RankedQuestions, Ranker, n_blocks, writable

Vote = Literal["soft", "majority"]

_MIN_CHUNK_BLOCKS, _MAX_CHUNK_BLOCKS = 4, 64
_TREES_AT_ONCE = 16
_MAX_DENSE_OUTPUTS = 4
_NO_VOTES = np.empty(0, np.int32)


class Predictor:
    """A complete forest, prepared once for any number of predictions.

    Parameters
    ----------
    structure : Structure
        The shape of the trees.
    splits : Splits
        The questions of every inner node.
    leaves : Leaves
        What the leaves answer.

    """

    def __init__(self, structure: Structure, splits: Splits, leaves: Leaves) -> None:
        if not np.array_equal(splits.node, np.flatnonzero(structure.right >= 0)):
            raise ValueError("Prediction needs the questions of all inner nodes.")
        self._leaves = leaves
        self._ranker = Ranker.of(splits)
        self._walker = Walker(structure, self._ranker.questions)
        self._answers: dict[Vote, LeafAnswers] = {}  # made at the first prediction: for one row they are all its work

    def apply(self, columns: Columns, n_rows: int, n_jobs: int | None = None) -> NDArray[np.int32]:
        """Find the leaf of every row in every tree.

        Parameters
        ----------
        columns : sequence of arrays
            The holder's table: float32 columns of numbers, int32 columns of category codes.
        n_rows : int
            Length of the columns.
        n_jobs : int or None
            Threads, as in scikit-learn.

        Returns
        -------
        array of int32, shape (n_rows, n_trees)
            Leaves by their number in preorder over the whole forest.

        """
        self._ranker.check(columns, n_rows)
        out = np.empty((n_rows, self._walker.n_trees), np.int32)

        def one(rows: slice) -> None:
            codes = self._ranker.block_codes(columns, rows)
            for trees, leaf in self._walker.leaves(codes, rows.stop - rows.start):
                out[rows, trees] = leaf[:, : rows.stop - rows.start].T

        run_chunks(one, row_chunks(n_rows, n_jobs), effective_jobs(n_jobs))
        return out

    def predict_outputs(
        self, columns: Columns, n_rows: int, vote: Vote = "soft", n_jobs: int | None = None
    ) -> NDArray[np.float64]:
        """Mean answer of the trees for every row.

        Parameters
        ----------
        columns : sequence of arrays
            The holder's table: float32 columns of numbers, int32 columns of category codes.
        n_rows : int
            Length of the columns.
        vote : {"soft", "majority"}
            Whether a tree answers with its leaf's values or gives one vote to the largest of them.
        n_jobs : int or None
            Threads, as in scikit-learn.

        Returns
        -------
        array of float64, shape (n_rows, n_outputs)

        """
        self._ranker.check(columns, n_rows)
        answers = self._answers.get(vote)
        if answers is None:
            answers = self._answers[vote] = answers_of(self._leaves, vote)
        out = np.zeros((n_rows, self._leaves.n_outputs))

        def one(rows: slice) -> None:
            codes = self._ranker.block_codes(columns, rows)
            for _, leaf in self._walker.leaves(codes, rows.stop - rows.start):
                add_answers(answers, leaf, out[rows])

        run_chunks(one, row_chunks(n_rows, n_jobs), effective_jobs(n_jobs))
        out /= self._walker.n_trees
        return linked(out, self._leaves)


class Walker:
    """Trees in the form of ``kernels.walk``: one word per node."""

    def __init__(self, structure: Structure, questions: RankedQuestions) -> None:
        node = questions.node
        jump = structure.right[node].astype(np.int64) - node
        if len(jump) and int(jump.max()) >= MAX_JUMP:
            raise ValueError(f"A tree can have at most {MAX_JUMP} nodes.")
        self._words = np.zeros(structure.n_nodes, np.int64)
        self._words[node] = questions.word | jump << JUMP_BIT
        self._where, self._sets = _place_sets(structure.n_nodes, questions)
        self._questions = questions
        self._roots = writable(structure.offset[:-1])
        self._leaf = writable(structure.leaf)

    @property
    def n_trees(self) -> int:
        return len(self._roots)

    def leaves(self, codes: Codes, n_rows: int) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """Walk a few trees at a time, so that no matrix of rows by trees is ever held."""
        leaf = np.empty((min(self.n_trees, _TREES_AT_ONCE), 64 * n_blocks(n_rows)), np.int32)
        for first in range(0, self.n_trees, _TREES_AT_ONCE):
            trees = slice(first, min(first + _TREES_AT_ONCE, self.n_trees))
            part = leaf[: trees.stop - trees.start]
            self._walk(codes, self._roots[trees], part)
            yield trees, part

    def _walk(self, codes: Codes, roots: NDArray[np.int64], out: NDArray[np.int32]) -> None:
        q = self._questions
        if q.n_slots == q.n_numeric:
            walk_numbers(self._words, roots, codes, q.n_slots, self._leaf, out)
        else:
            walk(self._words, roots, self._where, self._sets, codes, q.n_slots, self._leaf, out)


def _place_sets(n_nodes: int, questions: RankedQuestions) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The second word of each node, and the sets with a byte more for codes that they do not cover."""
    if questions.n_slots == questions.n_numeric:
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    lengths = np.diff(questions.set_start)
    asked = np.flatnonzero(((questions.word >> SLOT_BIT) & (MAX_SLOTS - 1)) >= questions.n_numeric)
    if int(questions.set_start[-1]) + len(asked) >= MAX_SET_BYTES:
        raise ValueError(f"The sets of a forest can have at most {MAX_SET_BYTES} bytes.")
    lengths = lengths[asked]
    first = np.cumsum(lengths + 1) - (lengths + 1)
    missing_left = (questions.word[asked] >> SHIFT_BIT) & 1
    sets = np.zeros(max(int((lengths + 1).sum()), 1), np.uint8)  # nodes without a set read the first byte
    sets[: int((lengths + 1).sum())] = np.repeat(np.where(missing_left == 1, 255, 0), lengths + 1)
    source = np.arange(int(lengths.sum()))
    begins = np.cumsum(lengths) - lengths
    own = np.repeat(questions.set_start[:-1][asked] - begins, lengths) + source
    sets[np.repeat(first - begins, lengths) + source] = questions.sets[own]
    where = np.zeros(n_nodes, np.int64)
    where[questions.node[asked]] = np.int64(-1) << 63 | lengths << SET_BIT | first
    return where, sets


def outputs_from_leaves(leaf: NDArray[np.int32], leaves: Leaves, vote: Vote = "soft") -> NDArray[np.float64]:
    """Mean answer of the trees for rows whose leaves are known.

    Parameters
    ----------
    leaf : array of int32, shape (n_rows, n_trees)
        The leaf of every row in every tree.
    leaves : Leaves
        What the leaves answer.
    vote : {"soft", "majority"}
        Whether a tree answers with its leaf's values or gives one vote to the largest of them.

    Returns
    -------
    array of float64, shape (n_rows, n_outputs)

    """
    if leaf.size and not 0 <= leaf.min() <= leaf.max() < len(leaves.weight):
        raise ValueError("There is no such leaf.")
    out = np.zeros((len(leaf), leaves.n_outputs))
    add_answers(answers_of(leaves, vote), np.ascontiguousarray(leaf.T), out)
    out /= leaf.shape[1]
    return linked(out, leaves)


def linked(mean: NDArray[np.float64], leaves: Leaves) -> NDArray[np.float64]:
    """The forest's answers, from the mean of its trees'; the array is changed."""
    return mean if leaves.link == "mean" else softmax(mean)


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares of the classes from their scores, row by row, in place."""
    scores -= scores.max(axis=1, keepdims=True, initial=-np.inf)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def answers_of(leaves: Leaves, vote: Vote) -> LeafAnswers:
    """Leaves as the kernels take them."""
    if vote not in ("soft", "majority"):
        raise ValueError(f"vote must be 'soft' or 'majority', not {vote!r}.")
    dense = np.zeros((0, 0))
    if leaves.n_outputs <= _MAX_DENSE_OUTPUTS:
        dense = np.zeros((len(leaves.weight), leaves.n_outputs))
        dense[np.repeat(np.arange(len(dense)), np.diff(leaves.start)), leaves.output] = leaves.value
    start, output, value = writable(leaves.start), writable(leaves.output), writable(leaves.value)
    majority = vote == "majority"
    return LeafAnswers(start, output, value, writable(leaves.top) if majority else _NO_VOTES, dense, majority)


def row_chunks(n_rows: int, n_jobs: int | None) -> list[slice]:
    """Whole blocks of rows, several chunks per thread so that none waits long for the last."""
    blocks = n_blocks(n_rows) // (4 * effective_jobs(n_jobs))
    step = 64 * min(max(blocks, _MIN_CHUNK_BLOCKS), _MAX_CHUNK_BLOCKS)
    return [slice(first, min(first + step, n_rows)) for first in range(0, n_rows, step)]

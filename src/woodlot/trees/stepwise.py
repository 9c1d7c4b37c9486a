"""The classical node-by-node prediction: one exchange per level of the deepest tree.

One-round prediction replaces it; it is kept to measure against.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import LocalProtocolError, RemoteProtocolError
from woodlot.trees.forest import Splits, Structure, subtree_ends
from woodlot.trees.ranks import Columns


def answer_questions(
    structure: Structure,
    splits: Splits,
    columns: Columns,
    rows: NDArray[np.int32],
    nodes: NDArray[np.int32],
) -> NDArray[np.uint8]:
    """Party: which of these rows go right at these nodes.

    Parameters
    ----------
    structure : Structure
        The shape of the trees.
    splits : Splits
        The party's own questions.
    columns : sequence of arrays
        The party's table: float32 columns of numbers, int32 columns of category codes.
    rows : array of int32
        Which row is at the node, for each question.
    nodes : array of int32
        Which node is asked about.

    Returns
    -------
    array of uint8
        One bit per question, from the low end of each byte; 1 is right.

    """
    if rows.shape != nodes.shape or rows.ndim != 1:
        raise RemoteProtocolError("There must be one row for every node.")
    question_of = np.full(structure.n_nodes, -1, np.int64)
    question_of[splits.node] = np.arange(len(splits.node))
    if len(nodes) and not 0 <= nodes.min() <= nodes.max() < structure.n_nodes:
        raise RemoteProtocolError("There is no such node.")
    question = question_of[nodes]
    if (question < 0).any():
        raise RemoteProtocolError("The coordinator asked about a node of another party.")
    n_rows = len(columns[0]) if len(columns) else 0
    if len(rows) and not 0 <= rows.min() <= rows.max() < n_rows:
        raise RemoteProtocolError("There is no such row.")

    left = np.empty(len(nodes), np.bool_)
    feature = splits.feature[question]
    for column in np.unique(feature).tolist():
        here = np.flatnonzero(feature == column)
        asked = question[here]
        values = columns[column][rows[here]]
        if splits.categorical[asked[0]]:
            code = values.view(np.uint32).astype(np.int64)
            at = splits.set_start[asked] + (code >> 3)
            covered = at < splits.set_start[asked + 1]
            bit = splits.sets[np.where(covered, at, 0)] >> (code & 7).astype(np.uint8) & 1
            left[here] = np.where(covered, bit == 1, splits.missing_left[asked])
        else:
            below = values.astype(np.float64) <= splits.threshold[asked]
            left[here] = np.where(np.isnan(values), splits.missing_left[asked], below)
    return np.packbits(~left, bitorder="little")


class Paths:
    """Party: where each row can still be asked about, which bounds what a coordinator can ask.

    A row goes down every tree once. When this party has told its side at a node, only nodes on that side are left; they
    are a range, for nodes are numbered in preorder.

    Parameters
    ----------
    structure : Structure
        The shape of the trees.
    n_rows : int
        Number of rows to predict.

    """

    def __init__(self, structure: Structure, n_rows: int) -> None:
        self._structure = structure
        self._end = subtree_ends(structure.right)
        self._first = np.tile(structure.offset[:-1].astype(np.int32), (n_rows, 1))
        self._last = np.tile(structure.offset[1:].astype(np.int32), (n_rows, 1))

    def follow(self, rows: NDArray[np.int32], nodes: NDArray[np.int32], bits: NDArray[np.uint8]) -> None:
        """Note the answers to some questions, or refuse them all.

        Parameters
        ----------
        rows, nodes : arrays of int32
            As `answer_questions` has taken them.
        bits : array of uint8
            What it has returned.

        Raises
        ------
        RemoteProtocolError
            If a row cannot be at the node, or is asked about twice in a tree.

        """
        trees = self.check(rows, nodes)
        right = np.unpackbits(bits, count=len(nodes), bitorder="little").astype(bool)
        behind = self._structure.right[nodes]
        self._first[rows, trees] = np.where(right, behind, nodes + 1)
        self._last[rows, trees] = np.where(right, self._end[nodes], behind)

    def check(self, rows: NDArray[np.int32], nodes: NDArray[np.int32]) -> NDArray[np.intp]:
        """Refuse questions about rows that cannot be at their nodes; returns the trees of the nodes."""
        trees = np.searchsorted(self._structure.offset, nodes, side="right") - 1
        ways = rows.astype(np.int64) * self._structure.n_trees + trees
        reached = (self._first[rows, trees] <= nodes) & (nodes < self._last[rows, trees])
        if not reached.all() or len(np.unique(ways)) != len(ways):
            raise RemoteProtocolError("AskNodes asks about a row at a node that it cannot have reached, or again.")
        return trees


class NodeByNode:
    """Coordinator: where every row stands in every tree.

    Ask ``questions()`` and give the parties' bits to ``step()`` until there are no questions left.

    Parameters
    ----------
    structure : Structure
        The shape of the trees.
    owner : array of int16
        Which party owns each node, -1 at leaves.
    n_rows : int
        Number of rows to predict.

    """

    def __init__(self, structure: Structure, owner: NDArray[np.int16], n_rows: int) -> None:
        self._structure = structure
        self._owner = owner
        self._at = np.tile(structure.offset[:-1].astype(np.int32), (n_rows, 1))

    def questions(self) -> dict[int, tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Rows and nodes to ask each party about next; empty when every row is in a leaf."""
        rows, trees = self._open()
        nodes = self._at[rows, trees]
        owner = self._owner[nodes]
        return {
            party: (rows[owner == party].astype(np.int32), nodes[owner == party]) for party in np.unique(owner).tolist()
        }

    def step(self, replies: Mapping[int, NDArray[np.uint8]]) -> None:
        """Move every row one node down, as the packed bits of the parties say.

        Parameters
        ----------
        replies : mapping of party to array of uint8
            The answer of every party that has questions.

        """
        rows, trees = self._open()
        nodes = self._at[rows, trees]
        owner = self._owner[nodes]
        right = np.empty(len(nodes), np.bool_)
        parties = np.unique(owner).tolist()
        if set(parties) != set(replies):
            raise LocalProtocolError("There must be one answer from every party that was asked.")
        for party in parties:
            mine = owner == party
            count = int(np.count_nonzero(mine))
            bits = replies[party]
            if bits.dtype != np.uint8 or bits.shape != ((count + 7) // 8,):
                raise RemoteProtocolError(f"Party {party} must answer {count} questions.")
            right[mine] = np.unpackbits(bits, count=count, bitorder="little")
        self._at[rows, trees] = np.where(right, self._structure.right[nodes], nodes + 1)

    def leaves(self) -> NDArray[np.int32]:
        """Leaf of every row in every tree, shape (n_rows, n_trees)."""
        if len(self._open()[0]):
            raise LocalProtocolError("Some rows are not in a leaf yet.")
        return self._structure.leaf[self._at]

    def _open(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        rows, trees = np.nonzero(self._structure.right[self._at] >= 0)
        return rows, trees

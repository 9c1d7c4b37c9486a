"""Leaves of whole trees, filled from what rows leave in them.

A *tally* has, for every node, the rows that count there and what they add up to: one number per class, or the sum of
their targets. It is made by each client; the sum of all tallies becomes the leaves' answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.forest import Leaves, Structure

EMPTY_WEIGHT = 2.0**-10
"""The weight of a leaf that nobody has rows in: next to nothing, as a leaf's weight is positive everywhere."""
_MOST_EXPONENT = 480


@dataclass(frozen=True, eq=False)
class Levels:
    """Nodes of all trees by their depth, for sums that run up or down the trees."""

    structure: Structure

    @cached_property
    def inner(self) -> list[NDArray[np.int64]]:
        """Inner nodes of each depth, from the roots on."""
        right = self.structure.right
        levels, nodes = [], self.structure.offset[:-1]
        while len(nodes := nodes[right[nodes] >= 0]):
            levels.append(nodes)
            nodes = np.column_stack([nodes + 1, right[nodes]]).ravel().astype(np.int64)
        return levels

    def add_up(self, amounts: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is at each node and below it, from what is at each node."""
        total = amounts.copy()
        for nodes in reversed(self.inner):
            total[nodes] += total[nodes + 1] + total[self.structure.right[nodes]]
        return total

    def merge_small(self, rows: NDArray[np.int64], amounts: NDArray[np.int64], min_rows: int) -> None:
        """Move what fewer than ``min_rows`` rows have left at a node to its parent, and so on up; in place.

        So everything that stands at a node comes from enough rows, and no row counts at two nodes: no difference of
        two numbers tells about fewer rows. What is too little even for the root is left out.
        """
        for nodes in reversed(self.inner):
            for children in (nodes + 1, self.structure.right[nodes]):
                few = np.flatnonzero(rows[children] < min_rows)
                small = children[few]
                rows[nodes[few]] += rows[small]
                amounts[nodes[few]] += amounts[small]
                rows[small] = 0
                amounts[small] = 0
        roots = self.structure.offset[:-1]
        small = roots[rows[roots] < min_rows]
        rows[small] = 0
        amounts[small] = 0

    def nearest_filled(self, filled: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The deepest node at or above each node that is filled; a root stands for itself."""
        source = np.arange(self.structure.n_nodes)
        for nodes in self.inner:
            for children in (nodes + 1, self.structure.right[nodes].astype(np.int64)):
                source[children] = np.where(filled[children], children, source[nodes])
        return source


def fill_leaves(
    structure: Structure,
    rows: NDArray[np.float64],
    votes: NDArray[np.float64],
    sums: NDArray[np.float64],
    criterion: str,
) -> tuple[Leaves, NDArray[np.float64]]:
    """The answers of the leaves, and how much each split improves them.

    A leaf where nothing counts answers as its deepest ancestor at or below which something does. A tree where nothing
    counts at all gives every class the same share, or 0 as a target.

    Parameters
    ----------
    structure : Structure
        The trees.
    rows : float64 array
        Rows that count at each node.
    votes : float64 array
        What their sums are to be divided by: the rows again, or the clients that they belong to. Zero where nothing
        counts.
    sums : float64 array of shape (n_nodes, n_outputs)
        Counts of the classes, or sums of targets.
    criterion : {"gini", "entropy", "squared_error"}
        What improves.

    Returns
    -------
    Leaves, float64 array
        And the gain of each split, weighted by the share of its tree's rows; 0 at leaves.
    """
    levels = Levels(structure)
    leaf = np.flatnonzero(structure.right < 0)
    total_votes, total_sums = levels.add_up(votes), levels.add_up(sums)
    weight = np.where(total_votes[leaf] > 0, rows[leaf], EMPTY_WEIGHT)
    unknown = structure.offset[:-1][total_votes[structure.offset[:-1]] == 0]
    total_votes[unknown], total_sums[unknown] = 1.0, float(criterion != "squared_error")
    source = levels.nearest_filled(total_votes > 0)[leaf]
    start: NDArray[np.int64] = np.arange(len(leaf) + 1, dtype=np.int64)
    output: NDArray[np.int64] = np.zeros(len(leaf), np.int64)
    if criterion == "squared_error":
        value = total_sums[source, 0] / total_votes[source]
    else:
        at, output = np.nonzero(total_sums[source])
        start[1:] = np.cumsum(np.bincount(at, minlength=len(leaf)))
        value = total_sums[source[at], output] / total_sums[source].sum(axis=1)[at]
    leaves = Leaves(
        weight=weight,
        start=start,
        output=output.astype(np.int32),
        value=value,
        n_outputs=sums.shape[1],
    )
    share = np.divide(rows, votes, out=np.zeros_like(rows), where=votes > 0)
    return leaves, _gains(levels, rows, sums * share[:, None], criterion)


def squarable(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values, multiplied by a power of two where their squares, or sums of these, would not be floats."""
    exponent = int(np.frexp(np.abs(values).max(initial=0.0))[1])
    return np.ldexp(values, -exponent) if abs(exponent) > _MOST_EXPONENT else values


def _gains(levels: Levels, rows: NDArray[np.float64], sums: NDArray[np.float64], criterion: str) -> NDArray[np.float64]:
    """What each split improves, weighted by the share of its tree's rows that come to it."""
    structure = levels.structure
    below, mass = levels.add_up(rows), levels.add_up(sums)
    inner = np.flatnonzero(structure.right >= 0)
    left, right = inner + 1, structure.right[inner]
    if criterion == "squared_error":
        means = np.divide(mass[:, 0], below, out=np.zeros_like(below), where=below > 0)
        both = below[left] + below[right]
        product = np.divide(below[left] * below[right], both, out=np.zeros_like(both), where=both > 0)
        improved = product * squarable(means[left] - means[right]) ** 2  # importances are shares, in any unit
    else:
        # rows that were moved up to the node are on neither side of its split
        whole = _disorder(mass[left] + mass[right], criterion)
        improved = whole - _disorder(mass[left], criterion) - _disorder(mass[right], criterion)
    gain = np.zeros(structure.n_nodes)
    gain[inner] = np.maximum(improved, 0.0)
    trees = np.repeat(structure.offset[:-1], np.diff(structure.offset))
    return np.asarray(gain / np.maximum(below[trees], EMPTY_WEIGHT))


def _disorder(mass: NDArray[np.float64], criterion: str) -> NDArray[np.float64]:
    """Impurity times weight."""
    total = mass.sum(axis=1, keepdims=True)
    share = np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)
    if criterion == "gini":
        return np.asarray(total[:, 0] * (1.0 - (share**2).sum(axis=1)))
    logs = np.log2(share, out=np.zeros_like(share), where=share > 0)
    return np.asarray(-total[:, 0] * (share * logs).sum(axis=1))

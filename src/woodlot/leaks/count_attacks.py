"""Values from the opened counts of a hidden training: chances for every row and column, fitted to all counts at once.

Nothing links a count to a row. But an attacker knows its own columns, so it knows in which bins of them each row is;
and of every tree it knows the splits. Chances that row i has bin v of a column that is not its own determine what every
opened count is expected to be: those of its own columns in nodes that others' splits have made, and those of the
others' columns. The chances that fit all counts of all trees best are found by stochastic gradients. It is database
reconstruction with soft rows, and uses every count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from woodlot.leaks.hidden_view import OpenedTrees
from woodlot.trees.kernels.soft_rows import expected_counts, slopes_of_chances

LEAST_PART = 0.02
"""A row is not followed into nodes in which its part is smaller."""
TREES_AT_ONCE = 10
"""Trees of one step of the fit."""
SPEED = 0.1
"""Length of a step."""
MOST_PULL = 20.0
"""Largest quotient of a true count and what is expected."""
MOST_VISITS = 1_500_000_000
"""Nodes that rows visit in all rounds, at most: some ten minutes. Fewer rounds are made where a round has more."""
LEAST_COUNT = 0.05
"""What is expected in a cell, at least."""
OF_LABELS = 0.5
"""Weight of sums of labels beside counts: they count rows as often as these were drawn, which is secret."""


@dataclass(frozen=True, eq=False)
class _Problem:
    """The counts as the kernels take them."""

    trees: OpenedTrees
    others: NDArray[np.int64]
    own: NDArray[np.int64]
    group: NDArray[np.int64]
    roots: NDArray[np.int64]
    column: NDArray[np.int64]
    pairs: NDArray[np.int64]
    of_pair: NDArray[np.int64]
    cells_of_tree: list[NDArray[np.int64]]

    @classmethod
    def of(cls, trees: OpenedTrees, party: str, own: NDArray[np.int64], group: NDArray[np.int64]) -> _Problem:
        mine = trees.of_party(party)
        others = np.setdiff1d(np.arange(len(trees.n_codes)), mine)
        place = np.empty(len(trees.n_codes), np.int64)
        place[others], place[mine] = np.arange(len(others)), -1 - np.arange(len(mine))
        order = np.argsort(trees.pair_node, kind="stable")
        node, column = trees.pair_node[order], trees.pair_column[order]
        lengths = trees.n_codes[trees.pair_column] + 1
        cell_tree = np.repeat(trees.tree[trees.pair_node], lengths)
        by_tree = np.argsort(cell_tree, kind="stable")
        ends = np.searchsorted(cell_tree[by_tree], np.arange(trees.n_trees + 1))
        return cls(
            trees,
            others,
            np.ascontiguousarray(own),
            group,
            trees.roots,
            np.where(trees.column >= 0, place[trees.column], -1),
            np.searchsorted(node, np.arange(len(trees.tree) + 1)),
            np.column_stack([place[column], trees.pair_start[order], trees.pair_shift[order], trees.n_codes[column]]),
            [by_tree[a:b] for a, b in itertools.pairwise(ends)],
        )

    def walk(self, roots: NDArray[np.int64]) -> tuple[NDArray[np.generic], ...]:
        t = self.trees
        rows = np.arange(t.n_rows)
        return (
            rows, roots, t.left, t.right, self.column, t.goes_left, self.pairs, self.of_pair, self.own,
            self.group,
        )  # fmt: skip


def chances_from_counts(
    trees: OpenedTrees,
    party: str,
    own: NDArray[np.int64],
    *,
    numbers: NDArray[np.int64] | None = None,
    rounds: int = 10,
    start: NDArray[np.float32] | None = None,
    fixed: NDArray[np.bool_] | None = None,
    watch: Callable[[int, NDArray[np.float32], float], None] | None = None,
    speed: float = SPEED,
    least: float = LEAST_PART,
    at_once: int = TREES_AT_ONCE,
) -> NDArray[np.float32]:
    """Chances of bins for every row and every column of the others.

    Parameters
    ----------
    trees : OpenedTrees
        What the attacker is told; with sums of labels if it has ``numbers``.
    party : str
        The attacker.
    own : int64 array of shape (columns, rows)
        Bins of its own columns.
    numbers : int64 array, optional
        Class of every row, if it is the label holder.
    rounds : int
        How often every tree is fitted; less often where that takes more than `MOST_VISITS`.
    start : float32 array, optional
        Chances to begin with; by default how frequent each bin is among all rows.
    fixed : bool array, optional
        Rows of which the chances stay as they begin: the attacker knows their values.
    watch : callable, optional
        Told the round, the chances and the error.

    Returns
    -------
    float32 array of shape (rows, columns of the others, bins)
        Columns in the order of their numbers.

    """
    group = np.zeros(trees.n_rows, np.int64) if numbers is None else numbers
    problem = _Problem.of(trees, party, own, group)
    n_groups = int(group.max()) + 1
    if start is None:
        bins = int(trees.n_codes.max()) + 1
        shares = np.zeros((len(problem.others), bins))
        for k, column in enumerate(problem.others.tolist()):
            counted = trees.marginals(column)
            shares[k, : len(counted)] = counted / counted.sum()
        start = np.broadcast_to(shares.astype(np.float32), (trees.n_rows, *shares.shape)).copy()
    with np.errstate(divide="ignore"):
        logs = np.log(start)
    chances = start.copy()
    cells = np.zeros((n_groups, len(trees.counts)))
    slopes, mean, square = np.zeros_like(chances), np.zeros_like(chances), np.zeros_like(chances)
    rng, step, visits = np.random.default_rng(0), 0, 0
    for number in range(rounds):
        order = rng.permutation(trees.n_trees)
        error = 0.0
        for first in range(0, trees.n_trees, at_once):
            some = order[first : first + at_once]
            told = np.concatenate([problem.cells_of_tree[k] for k in some.tolist()])
            walk = problem.walk(problem.roots[some])
            cells[:, told] = 0.0
            visits += int(expected_counts(*walk, chances, least, cells))
            cells[:, told], off = _pull(trees, cells[:, told], told)
            error += off
            slopes[:] = 0.0
            slopes_of_chances(*walk, chances, least, cells, slopes)
            if fixed is not None:
                slopes[fixed] = 0.0
            step += 1
            mean += 0.1 * (slopes - mean)
            square += 0.01 * (slopes * slopes - square)
            scale = np.sqrt(square / (1 - 0.99**step)).max(axis=2, keepdims=True) + 1e-6
            logs += speed * mean / (1 - 0.9**step) / scale
            logs -= logs.max(axis=2, keepdims=True)
            np.exp(logs, out=chances)
            chances /= chances.sum(axis=2, keepdims=True)
        if watch is not None:
            watch(number, chances, error)
        if visits * (number + 2) > MOST_VISITS * (number + 1):
            break
    return chances


def _pull(
    trees: OpenedTrees, expected: NDArray[np.float64], told: NDArray[np.int64]
) -> tuple[NDArray[np.float64], float]:
    """How the likelihood of the true counts (Poisson) grows with each expected one, and how far these are off."""
    whole = expected.sum(axis=0)
    true = trees.counts[told]
    pull = np.minimum(true / np.maximum(whole, LEAST_COUNT), MOST_PULL) - 1.0
    error = float(np.abs(true - whole).sum())
    if trees.label_sums is None or len(expected) == 1:
        return np.repeat(pull[None], len(expected), axis=0), error
    by_class = np.minimum(trees.label_sums[:, told] / np.maximum(expected, LEAST_COUNT), MOST_PULL) - 1.0
    return pull + OF_LABELS * by_class, error

"""Labels from the messages of a training: by their code, by least squares, by pure leaves, by shared leaves.

All attacks work on a `View` or on messages; the true labels only mark the results.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix, csr_matrix, diags_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import lsmr, svds
from scipy.stats import spearmanr

from woodlot.leaks.case import Told
from woodlot.leaks.role_views import SplitRows, View
from woodlot.protocols.vertical.forest_messages import EncodedLabels, StartForest

CLOSE = 0.01
"""A target counts as recovered if it is right to this share of the targets' standard deviation."""
KNOWN_SHARE = 0.01
"""Share of rows whose labels or values an attacker is taken to know from elsewhere; at least `KNOWN_LEAST`."""
KNOWN_LEAST = 20
BOX_STEPS = 500
"""Steps of the least squares with bounds, where free least squares leaves classes undecided."""


def known_rows(n_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that an attacker knows from elsewhere, and the others."""
    order = np.random.default_rng(1).permutation(n_rows)
    n = min(max(KNOWN_LEAST, int(KNOWN_SHARE * n_rows)), n_rows // 2)
    return order[:n], order[n:]


def rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Spearman's; 0 where one of both is constant."""
    return 0.0 if np.ptp(a) == 0 or np.ptp(b) == 0 else float(spearmanr(a, b).statistic)


# --- marking guesses ---


def share_right(guess: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """Share of rows whose class is guessed right."""
    return float((guess == truth).mean())


def matched_at_best(groups: NDArray[np.int64], numbers: NDArray[np.int64]) -> float:
    """Share of rows that are right under the best naming of the groups: one known row per group tells it."""
    together = np.zeros((int(groups.max()) + 1, int(numbers.max()) + 1))
    np.add.at(together, (groups, numbers), 1.0)
    return float(together[linear_sum_assignment(-together)].sum() / len(numbers))


def matched_by_size(groups: NDArray[Any], numbers: NDArray[np.int64]) -> float:
    """Share of rows that are right if the largest group is taken for the largest class, and so on."""
    sizes, counts = np.bincount(groups), np.bincount(numbers)
    guess = np.full(len(sizes), -1)
    n = min(len(sizes), len(counts))
    guess[np.argsort(-sizes, kind="stable")[:n]] = np.argsort(-counts, kind="stable")[:n]
    return share_right(guess[groups], numbers)


def targets_recovered(guess: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Share of targets that are right to 1 % of their standard deviation."""
    return float((np.abs(guess - truth) <= CLOSE * truth.std()).mean())


# --- by their code ---


def codes_seen(told: Iterable[Told], role: str) -> NDArray[Any] | None:
    """Encoded labels, one per row, in the messages that a role gets; None: there are none."""
    for _, receiver, message in told:
        if receiver == role and isinstance(message, EncodedLabels | StartForest):
            return message.labels if message.targets is None else message.targets
    return None


def decoded_classes(codes: NDArray[Any], view: View) -> NDArray[np.int64]:
    """At the coordinator: which code is which class, from the rows of leaves whose true totals it is told."""
    if view.totals is None:
        raise ValueError("only the coordinator is told what leaves answer")
    n_classes = view.totals.shape[1]
    leaves = view.leaves
    coded = np.zeros((len(leaves.start) - 1, n_classes))
    np.add.at(coded, (leaves.of_entry, codes[leaves.rows].astype(np.int64)), leaves.weight)
    of_code = linear_sum_assignment(-(coded.T @ view.totals))[1]
    return np.asarray(of_code[codes.astype(np.int64)], np.int64)


def decoded_targets(codes: NDArray[np.int64], view: View) -> NDArray[np.float64]:
    """At the coordinator: shift and scale of coded targets, from the true means of leaves."""
    if view.totals is None:
        raise ValueError("only the coordinator is told what leaves answer")
    leaves = view.leaves
    weight = np.bincount(leaves.of_entry, leaves.weight)
    unit = float(np.abs(codes).max()) or 1.0
    coded = np.bincount(leaves.of_entry, leaves.weight * (codes[leaves.rows] / unit))
    slope, shift = np.linalg.lstsq(np.column_stack([coded, weight]), view.totals[:, 0], rcond=None)[0]
    return np.asarray(codes / unit * slope + shift, np.float64)


# --- least squares on leaf totals and partitions ---


def least_squares(view: View) -> NDArray[np.float64]:
    """At the coordinator: for every row the weight of each class (or its target) that explains the leaves' totals.

    Every leaf is an equation: the labels of its rows, each as often as the tree has drawn it, add up to what the leaf
    answers. A hundred trees have more leaves than there are rows, or nearly, so that the system has one solution.
    """
    if view.totals is None:
        raise ValueError("only the coordinator is told what leaves answer")
    leaves = view.leaves
    shape = (len(leaves.start) - 1, view.n_rows)
    system = csr_matrix((leaves.weight.astype(np.float64), (leaves.of_entry, leaves.rows)), shape=shape)
    solved = [lsmr(system, total, atol=1e-12, btol=1e-12, maxiter=2000)[0] for total in view.totals.T]
    found = np.column_stack(solved)
    if view.totals.shape[1] == 1:
        return found
    guess = np.eye(found.shape[1])[found.argmax(axis=1)]
    if np.array_equal(system @ guess, view.totals):
        return found
    return _least_squares_in_box(system, view.totals, np.clip(found, 0.0, 1.0))


def _least_squares_in_box(system: Any, totals: NDArray[np.float64], found: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same with weights from 0 to 1, by accelerated projected gradients: fewer equations suffice."""
    steepest = float(svds(system, 1, return_singular_vectors=False)[0]) ** 2
    ahead, momentum = found, 1.0
    for _ in range(BOX_STEPS):
        following = np.clip(ahead - (system.T @ (system @ ahead - totals)) / steepest, 0.0, 1.0)
        grown = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = following + (momentum - 1) / grown * (following - found)
        found, momentum = following, grown
    return found


# --- pure leaves ---


class LabelGroups(NamedTuple):
    """Rows in groups of one label each."""

    group: NDArray[np.int64]
    certain: float
    """Share of rows whose group follows from the messages with certainty."""


def groups_of_pure_leaves(view: View, frequencies: NDArray[np.float64]) -> LabelGroups:
    """Rows that share a pure leaf have one label: joined over all trees, such groups are the classes.

    With two classes, a node that was split has both: where its rows are of two groups, these are opposites. Rows that
    no certain step reaches go to the group that most of their leaf mates are in, so that groups become as large as
    the classes.

    Parameters
    ----------
    view : View
        Of a party that has no label.
    frequencies : float array
        How frequent the classes are in the population, largest first: what anybody may know.

    """
    leaves, n = view.leaves, view.n_rows
    entry = leaves.of_entry
    inside = leaves.pure[entry]
    row, leaf = leaves.rows[inside].astype(np.int64), entry[inside]
    size = n + len(leaves.start) - 1
    joined = coo_matrix((np.ones(len(row), bool), (row, n + leaf)), shape=(size, size))
    group = np.unique(connected_components(joined, directed=False)[1][:n], return_inverse=True)[1]
    n_classes = len(frequencies)
    if n_classes == 2:
        group = _joined_by_opposites(view.splits, group)
    sizes = np.bincount(group)
    largest = np.argsort(-sizes, kind="stable")[:n_classes]
    place = np.full(len(sizes), -1, np.int64)
    place[largest] = np.arange(len(largest))
    known = place[group]
    certain = float((known >= 0).mean())
    if (known < 0).any():
        known = _by_leaf_mates(view, known, frequencies)
    return LabelGroups(known, certain)


def _joined_by_opposites(splits: SplitRows, group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Groups that are opposites of the same group are one: the way of colouring a graph with two colours."""
    first = splits.start[:-1]
    while len(first):
        of_entry = group[splits.rows]
        low, high = np.minimum.reduceat(of_entry, first), np.maximum.reduceat(of_entry, first)
        sizes = np.diff(splits.start)
        between = (of_entry != np.repeat(low, sizes)) & (of_entry != np.repeat(high, sizes))
        two = (low != high) & (np.add.reduceat(between, first) == 0)
        n = int(group.max()) + 1
        # a group g is the nodes g and n + g: "has one colour" and "has the other"
        a = np.concatenate([low[two], n + low[two]])
        b = np.concatenate([n + high[two], high[two]])
        part = connected_components(coo_matrix((np.ones(len(a), bool), (a, b)), shape=(2 * n, 2 * n)), directed=False)
        colour = part[1][:n]
        joined = np.unique(colour, return_inverse=True)[1][group]
        if joined.max() == group.max():
            break
        group = joined
    return group


def _by_leaf_mates(view: View, known: NDArray[np.int64], frequencies: NDArray[np.float64]) -> NDArray[np.int64]:
    """Rows without a group, by the groups of rows in their leaves; groups fill up to what is frequent."""
    leaves, n_groups = view.leaves, len(frequencies)
    entry = leaves.of_entry
    mates = np.zeros((len(leaves.start) - 1, n_groups))
    has = known[leaves.rows] >= 0
    np.add.at(mates, (entry[has], known[leaves.rows[has]]), 1.0)
    share = mates / np.maximum(leaves.sizes, 1)[:, None]
    score = np.column_stack([np.bincount(leaves.rows, share[entry, k], minlength=view.n_rows) for k in range(n_groups)])
    found = known.copy()
    open_rows = np.flatnonzero(known < 0)
    room = np.maximum(
        np.rint(frequencies * view.n_rows).astype(np.int64) - np.bincount(known[known >= 0], minlength=n_groups), 0
    )
    for k in range(n_groups - 1):  # the most certain first; the rarest class takes what is left
        ranked = open_rows[np.argsort(-(score[open_rows, k] - score[open_rows, k + 1 :].max(axis=1)), kind="stable")]
        found[ranked[: room[k]]] = k
        open_rows = open_rows[found[open_rows] < 0]
    found[open_rows] = n_groups - 1
    return found


# --- rows that travel together ---


def company(view: View, *, nodes: bool) -> Any:
    """Rows by groups, 1 where a row is in a group: leaves of two rows or more; with ``nodes`` small split nodes, too.

    Classes are told by leaves alone. Leaves of a regression often have one row: there the nodes above count as well.
    """
    leaves, splits = view.leaves, view.splits
    few = max(KNOWN_LEAST, view.n_rows // 50) if nodes else 0
    sizes = np.concatenate([leaves.sizes, np.diff(splits.start)])
    rows = np.concatenate([leaves.rows, splits.rows])
    shape = (view.n_rows, len(sizes))
    matrix = csr_matrix((np.ones(len(rows)), (rows, np.repeat(np.arange(len(sizes)), sizes))), shape=shape)
    is_leaf = np.arange(len(sizes)) < len(leaves.sizes)
    return matrix[:, np.flatnonzero((sizes > 1) & (is_leaf | (sizes <= few)))]


def vote_of_company(
    view: View, known: NDArray[np.int64], values: NDArray[np.float64], *, nodes: bool
) -> NDArray[np.float64]:
    """Of every row the mean of what is known of rows in its groups (see `company`).

    Parameters
    ----------
    known : int64 array
        The rows of which something is known.
    values : float array of shape (len(known), any)
        What is known of them.

    """
    matrix = company(view, nodes=nodes)
    told = matrix[known]
    mean = (told.T @ values) / np.maximum(np.asarray(told.sum(axis=0)).ravel(), 1)[:, None]
    reached = matrix @ (np.asarray(told.sum(axis=0)).ravel() > 0).astype(np.float64)
    overall = values.mean(axis=0)
    voted = (matrix @ mean) / np.maximum(reached, 1)[:, None]
    return np.asarray(np.where(reached[:, None] > 0, voted, overall), np.float64)


def order_by_company(view: View) -> NDArray[np.float64]:
    """One number per row such that rows which travel together are near each other: an order, up to direction.

    It is the second direction of the graph in which rows are joined by small nodes; the first is trivial.
    """
    matrix = company(view, nodes=True)
    by_row = 1 / np.sqrt(np.maximum(np.asarray(matrix.sum(axis=1)).ravel(), 1))
    by_group = 1 / np.sqrt(np.maximum(np.asarray(matrix.sum(axis=0)).ravel(), 1))
    scaled = diags_array(by_row) @ matrix @ diags_array(by_group)
    if min(scaled.shape) < 4:
        return np.zeros(view.n_rows)
    left, value, _ = svds(scaled, 2, v0=np.ones(min(scaled.shape)))
    return np.asarray(left[:, np.argsort(-value)[1]] * by_row, np.float64)

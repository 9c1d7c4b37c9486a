"""The slow, obvious way to find the best split of a node: every cut, in exact arithmetic.

The twin of all split searches in ``woodlot.trees.kernels``. It sees values and categories, never codes or groups of
codes, and adds integers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np


@dataclass(frozen=True, eq=False)
class Target:
    """Labels and integer weights of a node's rows.

    Attributes
    ----------
    parts : int64 array (rows, K)
        Weight of each row in the column of its class; for regression its weight, and weight times target.
    criterion : {"gini", "entropy", "squared_error"}
        What a split improves.
    scale : float
        Factor of the fixed-point entropy.
    """

    parts: np.ndarray
    criterion: str
    scale: float = 1.0

    @classmethod
    def of_classes(
        cls, labels: np.ndarray, weights: np.ndarray, n_classes: int, criterion: str = "gini", scale: float = 1.0
    ) -> Target:
        parts = np.zeros((len(labels), n_classes), np.int64)
        parts[np.arange(len(labels)), labels] = weights
        return cls(parts, criterion, scale)

    @classmethod
    def of_values(cls, values: np.ndarray, weights: np.ndarray) -> Target:
        return cls(np.column_stack([weights, weights * values]).astype(np.int64), "squared_error")

    def weight(self, parts: np.ndarray) -> np.ndarray:
        return parts[..., 0] if self.criterion == "squared_error" else parts.sum(axis=-1)

    def child_scores(self, parts: np.ndarray) -> np.ndarray:
        """Score of children that hold these parts, as the documentation of the kernels has it."""
        if self.criterion == "squared_error":
            total = parts[..., 1].astype(np.float64)
            return total * total / parts[..., 0].astype(np.float64)
        if self.criterion == "gini":
            return (parts * parts).sum(axis=-1).astype(np.float64) / self.weight(parts).astype(np.float64)
        x = fixed_xlogx(parts, self.scale).sum(axis=-1) - fixed_xlogx(self.weight(parts), self.scale)
        return x.astype(np.float64)

    def exact(self, parts: np.ndarray) -> Fraction:
        """The same score of one child without any rounding; the fixed-point entropy is an integer already."""
        if self.criterion == "squared_error":
            return Fraction(int(parts[1]) ** 2, int(parts[0]))
        if self.criterion == "gini":
            return Fraction(sum(int(p) ** 2 for p in parts), int(parts.sum()))
        return Fraction(int(self.child_scores(parts)))

    def real_entropy(self, parts: np.ndarray) -> np.ndarray:
        """Weighted entropy (negative, in bits) of children, in extended precision and without fixed point."""
        return xlogx(parts).sum(axis=-1) - xlogx(self.weight(parts))


def xlogx(x: np.ndarray) -> np.ndarray:
    return np.where(x > 1, x * np.log2(np.maximum(x, 1).astype(np.longdouble)), 0)


def fixed_xlogx(x: np.ndarray, scale: float) -> np.ndarray:
    return np.rint(x * np.log2(np.maximum(x, 1)) * scale).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Cuts:
    """All splits that a column allows, in the order in which equals are preferred."""

    target: Target
    left: np.ndarray
    """Parts on the left of each split."""
    total: np.ndarray
    rows_left: np.ndarray
    n_rows: int
    cut: np.ndarray
    """What tells the split: position of the last value on the left, or of the last category in the node's order."""
    missing_left: np.ndarray

    def allowed(self, min_leaf: int, min_weight: int) -> Cuts:
        weight, whole = self.target.weight(self.left), self.target.weight(self.total)
        keep = (self.rows_left >= min_leaf) & (self.n_rows - self.rows_left >= min_leaf)
        keep &= (weight >= min_weight) & (whole - weight >= min_weight)
        return Cuts(
            self.target,
            self.left[keep],
            self.total,
            self.rows_left[keep],
            self.n_rows,
            self.cut[keep],
            self.missing_left[keep],
        )

    @property
    def scores(self) -> np.ndarray:
        """Float64 functions of exact integers: what every kernel must find to the bit."""
        if self.target.criterion == "entropy":
            # one integer, rounded once
            t = self.target
            right = self.total - self.left
            both = [
                fixed_xlogx(p, t.scale).sum(axis=-1) - fixed_xlogx(t.weight(p), t.scale) for p in (self.left, right)
            ]
            return (both[0] + both[1]).astype(np.float64)
        return self.target.child_scores(self.left) + self.target.child_scores(self.total - self.left)

    def exact(self, i: int) -> Fraction:
        return self.target.exact(self.left[i]) + self.target.exact(self.total - self.left[i])

    def best(self) -> int:
        """The split with the best score, the first of equals; -1 when there is none."""
        return int(np.argmax(self.scores)) if len(self.cut) else -1

    def exact_best(self) -> Fraction:
        """The best score of all splits, without any rounding."""
        scores = self.scores
        near = np.flatnonzero(scores >= scores.max() - 1e-9 * abs(scores.max()))
        return max(self.exact(int(i)) for i in near)


def _cuts(ranks: np.ndarray, n_ranks: int, target: Target, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parts and rows on the left of the cut after each rank, where ``before`` marks rows that stand left anyway."""
    inside = ~before
    parts = np.zeros((n_ranks, target.parts.shape[1]), np.int64)
    np.add.at(parts, ranks[inside], target.parts[inside])
    rows = np.bincount(ranks[inside], minlength=n_ranks)
    return (
        np.cumsum(parts, axis=0) + target.parts[before].sum(axis=0),
        np.cumsum(rows) + np.count_nonzero(before),
    )


def cuts_of_numbers(values: np.ndarray, target: Target) -> Cuts:
    """Cuts between neighbouring values; with missing values these may stand on the right, or on the left."""
    missing = np.isnan(values)
    distinct = np.unique(values[~missing])
    ranks = np.searchsorted(distinct, np.where(missing, 0, values))
    ranks[missing] = len(distinct)
    nobody = np.zeros(len(values), bool)
    left, rows = _cuts(ranks, len(distinct) + 1, target, nobody)
    # the cut after the last value has the missing ones alone on the right
    n_right = len(distinct) if missing.any() else max(len(distinct) - 1, 0)
    parts, counts, cut = [left[:n_right]], [rows[:n_right]], [np.arange(n_right)]
    if missing.any() and len(distinct):
        left, rows = _cuts(ranks, len(distinct), target, missing)
        parts.append(left[:-1])
        counts.append(rows[:-1])
        cut.append(np.arange(len(distinct) - 1))
    positions = np.concatenate(cut)
    return Cuts(
        target,
        np.concatenate(parts),
        target.parts.sum(axis=0),
        np.concatenate(counts),
        len(values),
        positions,
        np.arange(len(positions)) >= n_right,
    )


def cuts_of_categories(codes: np.ndarray, target: Target) -> tuple[Cuts, np.ndarray]:
    """Cuts in the order of the categories by mean target, or by share of one class; and that order."""
    present = np.unique(codes)
    totals = np.array([target.parts[codes == c].sum(axis=0) for c in present])
    if target.criterion == "squared_error":
        mean = totals[:, 1] / totals[:, 0]
    else:
        mean = totals[:, _largest_class(target)] / totals.sum(axis=1)
    order = present[np.lexsort((present, mean))]
    place = np.empty(int(codes.max()) + 1, np.int64)
    place[order] = np.arange(len(order))
    ranks = place[codes]
    left, rows = _cuts(ranks, len(order), target, np.zeros(len(codes), bool))
    n = len(order) - 1
    cuts = Cuts(target, left[:n], target.parts.sum(axis=0), rows[:n], len(codes), np.arange(n), np.zeros(n, bool))
    return cuts, order


def _largest_class(target: Target) -> int:
    """Of equally heavy classes the one that comes first among the rows."""
    weight = target.parts.sum(axis=0)
    classes = target.parts.argmax(axis=1)
    return int(next(k for k in classes if weight[k] == weight.max()))


def subsets_of_categories(codes: np.ndarray, target: Target) -> Cuts:
    """Every way to send some of the categories left."""
    present = np.unique(codes)
    chosen = [np.isin(codes, s) for size in range(1, len(present)) for s in combinations(present.tolist(), size)]
    n = len(chosen)
    left = np.array([target.parts[rows].sum(axis=0) for rows in chosen]).reshape(n, target.parts.shape[1])
    rows = np.array([np.count_nonzero(rows) for rows in chosen], np.int64)
    return Cuts(target, left, target.parts.sum(axis=0), rows, len(codes), np.arange(n), np.zeros(n, bool))

"""Candidate splits evenly spaced in a random range (FLE-Expan), and how good each is (FOS-Find).

A *pair* is a node and one of its candidate features. For each pair the party draws ``rho`` of the node's rows, takes
their smallest and largest value, and puts ``zeta`` cuts evenly between them. A row's *bin* is the number of cuts below
its value, so a row goes left at cut c where its bin is at most c: one bin per row tells all ``zeta`` split vectors.

::

    values        float32 (columns, table rows)
    node, feature int64 (pairs,)      the pairs, ascending by node
    keys          uint64 (pairs,)     seed of the draw of each pair's range
    low, high     float64 (pairs,)    the range
    bins          uint8, the rows of the first pair's node, then those of the next pair's; pair p begins at ``first[p]``

FLE-Expan and FOS-Find are algorithms of RevFRF. Participants run the first half of this file; the coordinator, which
has the labels there, runs the second (from `score_classes` on).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.hashing import mix

I64: Any = np.int64
U64: Any = np.uint64


@kernel
def cut_value(low: Any, high: Any, cut: Any, zeta: Any) -> Any:
    """Where a cut lies: inside the range, never on its ends unless these are neighbours."""
    return low + (high - low) * ((cut + 1) / (zeta + 1))


@kernel
def cut_values(low: Any, high: Any, cut: Any, zeta: Any, out: Any) -> None:
    """Where some cuts lie."""
    for i in range(len(cut)):
        out[i] = cut_value(low[i], high[i], cut[i], zeta)


@kernel
def draw_ranges(
    values: Any, rows: Any, start: Any, end: Any, node: Any, feature: Any, keys: Any, rho: Any, low: Any, high: Any
) -> None:
    """Smallest and largest value of ``rho`` random rows of each pair's node, drawn with replacement.

    Of all rows of the node where it has no more than ``rho``, or where ``rho`` is 0.
    """
    for p in range(len(node)):
        s = start[node[p]]
        n = end[node[p]] - s
        column = feature[p]
        smallest, largest = np.inf, -np.inf
        draws = n if rho <= 0 or n <= rho else rho
        k = keys[p]
        for j in range(draws):
            at = j
            if draws < n:
                k += U64(0x9E3779B97F4A7C15)
                at = I64(((mix(k) >> U64(32)) * U64(n)) >> U64(32))
            x = np.float64(values[column, rows[s + at]])
            smallest = min(smallest, x)
            largest = max(largest, x)
        low[p] = smallest
        high[p] = largest


@kernel
def bin_rows(
    values: Any, rows: Any, start: Any, end: Any, node: Any, feature: Any, low: Any, high: Any, zeta: Any, bins: Any
) -> None:
    """The bin of every row of every pair's node, pair after pair; 0 where the range is a single value.

    A multiplication guesses the bin, and comparisons with the cuts themselves correct it: a row must go to the same
    side here as at prediction, which compares with `cut_value`.
    """
    o = 0
    for p in range(len(node)):
        a, b = low[p], high[p]
        scale = (zeta + 1) / (b - a) if b > a else 0.0
        column = feature[p]
        for i in range(start[node[p]], end[node[p]]):
            x = np.float64(values[column, rows[i]])
            k = 0
            if b > a:
                guess = (x - a) * scale
                k = zeta if guess >= zeta + 1 else (0 if guess <= 0 else I64(guess))
                k = min(k, zeta)
                # rounding may have gone one too far: the cut itself decides
                while k < zeta and x > cut_value(a, b, k, zeta):
                    k += 1
                while k > 0 and x <= cut_value(a, b, k - 1, zeta):
                    k -= 1
            bins[o] = k
            o += 1


@kernel
def score_classes(
    bins: Any, first: Any, node: Any, rows: Any, weights: Any, labels: Any, start: Any, end: Any, n_classes: Any,
    zeta: Any, min_leaf: Any, score: Any, cut: Any,
) -> None:  # fmt: skip
    """The best cut of each pair by the Gini impurity of its children, each weighted by its rows; -1 where none can be.

    The score is the sum over both children of (sum of squared class weights) / weight: larger is purer.
    """
    hist = np.zeros((zeta + 1, n_classes), np.int64)
    count = np.zeros(zeta + 1, np.int64)
    left = np.zeros(n_classes, np.int64)
    total = np.zeros(n_classes, np.int64)
    for p in range(len(node)):
        hist[:] = 0
        count[:] = 0
        left[:] = 0
        total[:] = 0
        s, e = start[node[p]], end[node[p]]
        for i in range(s, e):
            b = bins[first[p] + i - s]
            hist[b, labels[rows[i]]] += weights[i]
            count[b] += 1
        for b in range(zeta + 1):
            for c in range(n_classes):
                total[c] += hist[b, c]
        score[p] = -np.inf
        cut[p] = -1
        n_left = 0
        for b in range(zeta):
            n_left += count[b]
            if count[b] == 0 and cut[p] >= 0:
                continue  # the same rows on the left as at the cut before, which is the lower one
            wl, wr, ql, qr = I64(0), I64(0), 0.0, 0.0
            for c in range(n_classes):
                left[c] += hist[b, c]
                right = total[c] - left[c]
                wl += left[c]
                wr += right
                ql += np.float64(left[c]) * np.float64(left[c])
                qr += np.float64(right) * np.float64(right)
            if n_left < min_leaf or e - s - n_left < min_leaf:
                continue
            found = ql / wl + qr / wr
            if found > score[p]:
                score[p] = found
                cut[p] = b


@kernel
def score_targets(
    bins: Any, first: Any, node: Any, rows: Any, weights: Any, targets: Any, start: Any, end: Any, zeta: Any,
    min_leaf: Any, score: Any, cut: Any,
) -> None:  # fmt: skip
    """The best cut of each pair by the squared error of its children; -1 where none can be.

    The score is the sum over both children of (sum of targets)^2 / weight: larger means less error.
    """
    sums = np.zeros(zeta + 1)
    mass = np.zeros(zeta + 1)
    count = np.zeros(zeta + 1, np.int64)
    for p in range(len(node)):
        sums[:] = 0
        mass[:] = 0
        count[:] = 0
        s, e = start[node[p]], end[node[p]]
        for i in range(s, e):
            b = bins[first[p] + i - s]
            w = np.float64(weights[i])
            sums[b] += w * targets[rows[i]]
            mass[b] += w
            count[b] += 1
        all_sum, all_mass = sums.sum(), mass.sum()
        score[p] = -np.inf
        cut[p] = -1
        left_sum, left_mass, n_left = 0.0, 0.0, 0
        for b in range(zeta):
            left_sum += sums[b]
            left_mass += mass[b]
            n_left += count[b]
            if n_left < min_leaf or e - s - n_left < min_leaf or (count[b] == 0 and cut[p] >= 0):
                continue
            right_sum = all_sum - left_sum
            found = left_sum * left_sum / left_mass + right_sum * right_sum / (all_mass - left_mass)
            if found > score[p]:
                score[p] = found
                cut[p] = b


@kernel
def whole_classes(rows: Any, weights: Any, labels: Any, start: Any, end: Any, n_classes: Any, whole: Any) -> None:
    """The score of each node left whole; minus its own weight where all its rows are of one class (it is pure)."""
    total = np.zeros(n_classes, np.int64)
    for node in range(len(start)):
        total[:] = 0
        for i in range(start[node], end[node]):
            total[labels[rows[i]]] += weights[i]
        mass = np.float64(total.sum())
        squares = 0.0
        for c in range(n_classes):
            squares += np.float64(total[c]) * np.float64(total[c])
        whole[node] = -mass if total.max() == total.sum() else squares / mass


@kernel
def whole_targets(rows: Any, weights: Any, targets: Any, start: Any, end: Any, whole: Any) -> None:
    """The score of each node left whole; -1 where all its targets are equal (it is pure)."""
    for node in range(len(start)):
        s, m, pure = 0.0, 0.0, True
        for i in range(start[node], end[node]):
            w = np.float64(weights[i])
            s += w * targets[rows[i]]
            m += w
            pure = pure and targets[rows[i]] == targets[rows[start[node]]]
        whole[node] = -1.0 if pure else s * s / m
